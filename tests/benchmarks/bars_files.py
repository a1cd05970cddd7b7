"""Small files in the exact form of those of the BARS leaderboard, drawn at random."""

import pathlib
from collections.abc import Callable

import numpy as np

Draw = np.random.Generator
_SITES = "site_id site_domain site_category app_id app_domain app_category device_id device_ip device_model".split()
_USER = "cms_segid cms_group_id final_gender_code age_level pvalue_level shopping_level occupation"


def write(name: str, directory: pathlib.Path, rows: int = 2000, seed: int = 1) -> pathlib.Path:
    """Writes the parts of a data set with `rows` rows in all, 8 : 1 : 1 or 8 : 2; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    header, row, has_valid = FORMS[name]
    draw = np.random.default_rng(seed)
    shares = {"train": 0.8, "valid": 0.1, "test": 0.1} if has_valid else {"train": 0.8, "test": 0.2}
    for part, share in shares.items():
        lines = [",".join(map(str, row(draw))) for _ in range(int(rows * share))]
        (directory / f"{part}.csv").write_text("\n".join([",".join(header), *lines, ""]))
    return directory


def _label_of(draw: Draw, *values: int) -> int:
    """Returns a click that depends on the values, so that a model has something to learn."""
    return int(draw.random() < 0.1 + 0.8 * (sum(values) % 3 == 0))


def _criteo_x1(draw: Draw) -> list[object]:
    ids = draw.integers(0, 40, 26).tolist()
    return [_label_of(draw, ids[0]), *draw.random(13).round(6).tolist(), *ids]


def _criteo_x4(draw: Draw) -> list[object]:
    numbers = [int(x) - 2 if draw.random() < 0.8 else "" for x in draw.geometric(0.02, 13)]
    ids = draw.zipf(1.5, 26) % 1000
    texts = [f"{i * 2654435761 % 2**32:08x}" if draw.random() < 0.9 else "" for i in ids.tolist()]
    return [_label_of(draw, int(ids[0])), *numbers, *texts]


def _ids(most: int, columns: int) -> Callable[[Draw], list[object]]:
    """Returns a function that draws a label and so many columns of ids."""

    def row(draw: Draw) -> list[object]:
        ids = draw.integers(0, most, columns).tolist()
        return [_label_of(draw, ids[0]), *ids]

    return row


def _avazu_x4(draw: Draw) -> list[object]:
    ids = (draw.zipf(1.5, 9) % 1000).tolist()
    hour = f"1410{draw.integers(21, 31)}{draw.integers(0, 24):02}"
    sites = [f"{i:08x}" for i in ids]
    more = [draw.integers(0, 3), draw.integers(0, 3), *draw.integers(0, 50, 8).tolist()]
    return [draw.integers(0, 2**62), _label_of(draw, ids[0]), hour, 1005, draw.integers(0, 3), *sites, *more]


def _kkbox_x1(draw: Draw) -> list[object]:
    user, song, artist = (draw.zipf(1.5, 3) % 500).tolist()
    screen = ["my library", "Local playlist more", "local-playlist", 13, draw.integers(0, 101), "female", 9]
    isrc = ["", "TWA530887303", "GBUM71602854"][draw.integers(0, 3)]
    genres = " ".join(map(str, draw.integers(1, 400, draw.integers(0, 6))))
    times = [20120101, 20171005, 206471.0]
    return [_label_of(draw, user), user, song, *screen, *times, genres, f"{artist} 7", "", "", 3, 17, isrc]


def _amazonelectronics_x1(draw: Draw) -> list[object]:
    item, history = int(draw.integers(0, 300)), draw.integers(0, 300, draw.integers(1, 30))
    items, kinds = "^".join(map(str, history)), "^".join(map(str, history % 17))
    return [_label_of(draw, item), draw.integers(0, 200), item, item % 17, items, kinds]


def _taobaoad_x1(draw: Draw) -> list[object]:
    length, ad = draw.integers(0, 9), int(draw.zipf(1.5) % 500)
    histories = ["^".join(map(str, draw.integers(1, most, length))) for most in (5, 40, 60)]
    user = [draw.integers(1, 100), *draw.integers(0, 5, 8).tolist()]
    ad_columns = [ad, ad % 40 + 1, ad % 90, ad % 70, ad % 60 + 1, round(float(draw.random() * 900), 1), "430548_1007"]
    return [_label_of(draw, ad), *histories, *user, *ad_columns, 1]


def _kuaivideo_x1(draw: Draw) -> list[object]:
    user, item = int(draw.integers(0, 50)), int(draw.zipf(1.5) % 500)
    histories = ["^".join(map(str, draw.zipf(1.5, draw.integers(0, 9)) % 500)) for _ in range(2)]
    return [draw.integers(0, 10**6), user, item, _label_of(draw, item), 0, 0, *histories]


def _named(prefix: str, first: int, last: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(first, last + 1)]


_FRAPPE = "label user item daytime weekday isweekend homework cost weather country city"
_AMAZON = "label user_id item_id cate_id item_history cate_history"
_KUAIVIDEO = "timestamp user_id item_id is_click is_like is_follow pos_items neg_items"
_KKBOX = (
    "label msno song_id source_system_tab source_screen_name source_type city bd gender registered_via "
    "registration_init_time expiration_date song_length genre_ids artist_name composer lyricist language name isrc"
)
_AVAZU = ["id", "click", "hour", "C1", "banner_pos", *_SITES, "device_type", "device_conn_type", *_named("C", 14, 21)]
_TAOBAO = (
    f"clk btag_his cate_his brand_his userid {_USER} new_user_class_level adgroup_id cate_id campaign_id customer "
    "brand price pid btag"
)
# Of each data set the header, a row, and whether BARS has a validation file.
FORMS: dict[str, tuple[list[str], Callable[[Draw], list[object]], bool]] = {
    "criteo_x1": (["label", *_named("I", 1, 13), *_named("C", 1, 26)], _criteo_x1, True),
    "criteo_x4": (["Label", *_named("I", 1, 13), *_named("C", 1, 26)], _criteo_x4, True),
    "avazu_x1": (["label", *_named("feat_", 1, 22)], _ids(40, 22), True),
    "avazu_x4": (_AVAZU, _avazu_x4, True),
    "frappe_x1": (_FRAPPE.split(), _ids(30, 10), True),
    "movielenslatest_x1": (["label", "user_id", "item_id", "tag_id"], _ids(60, 3), True),
    "kkbox_x1": (_KKBOX.split(), _kkbox_x1, True),
    "amazonelectronics_x1": (_AMAZON.split(), _amazonelectronics_x1, False),
    "taobaoad_x1": (_TAOBAO.split(), _taobaoad_x1, False),
    "kuaivideo_x1": (_KUAIVIDEO.split(), _kuaivideo_x1, False),
}
