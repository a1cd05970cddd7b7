"""The page of a scoring server, in a real browser."""

import shutil

import pytest

from tests.scoring import trained
from tests.scoring.conftest import running

selenium = pytest.importorskip("selenium", reason="a browser is driven by selenium: pip install 'ctr_trainer[test]'")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

_BROWSER, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_SECONDS = 60
_FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
    *("disable-component-update", "disable-sync", "disable-dev-shm-usage"),
)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not (_BROWSER and _DRIVER), reason="no chromium and chromedriver: apt install chromium chromium-driver"
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = _BROWSER
    for flag in (*_FLAGS, f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(_DRIVER))
    yield browser
    browser.quit()


def _until(browser, element, text):
    find = (By.ID, element)
    WebDriverWait(browser, _SECONDS).until(lambda b: text in b.find_element(*find).text, f"{text!r} in #{element}")
    return browser.find_element(*find).text


def _open(browser, server):
    browser.set_window_size(1280, 900)
    browser.get(f"http://127.0.0.1:{server.port}/")


def _fill(browser, instance):
    for name, value in instance.items():
        text = "" if value is None else ", ".join(value) if isinstance(value, list) else str(value)
        field = browser.find_element(By.NAME, name)
        field.clear()
        field.send_keys(text)


def test_the_form_gives_predicts_number_its_freshness_and_its_latency(browser, server, small_model):
    _open(browser, server)
    _until(browser, "name", trained.NAME)
    _fill(browser, small_model.instances[1])
    browser.find_element(By.ID, "predict").click()
    _until(browser, "status", "200, predicted")
    answer = _until(browser, "answer", "probabilities")
    found = float(answer.partition('"probabilities": ')[2].split()[0].rstrip("}"))
    assert found == pytest.approx(float(small_model.expected[0][1]), abs=1e-6)
    assert "trained to step 19, " in browser.find_element(By.ID, "record").text
    assert "generation 1, epoch 0" in browser.find_element(By.ID, "age").text
    assert " ms" in browser.find_element(By.ID, "latency").text and "rows" in browser.find_element(By.ID, "server").text
    assert "trained to step 19, " in _until(browser, "state", " ago")
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    price = browser.find_element(By.NAME, "price")
    price.clear()
    price.send_keys("dear")
    browser.find_element(By.ID, "predict").click()
    _until(browser, "status", "400, refused")
    assert "column 'price': \"dear\" is not a number" in browser.find_element(By.ID, "answer").text
    # A second form has several examples, and its fields start with typical values.
    _open(browser, server)
    _until(browser, "name", trained.NAME)
    instances = small_model.instances
    for name in ("place", "device"):
        text = browser.find_element(By.NAME, name).get_attribute("value")
        assert text and text in {each[name] for each in instances}
    # The most frequent user has some 4% of the rows: the text might be one person's own id.
    assert browser.find_element(By.NAME, "user").get_attribute("value") == ""
    browser.find_element(By.ID, "add").click()
    _until(browser, "which", "Example 2 of 2")
    browser.find_element(By.NAME, "price").send_keys("7")
    browser.find_element(By.ID, "predict").click()
    _until(browser, "status", "200, predicted")
    assert browser.find_element(By.ID, "answer").text.count("probabilities") == 2


def test_the_token_is_asked_for(browser, publication, tmp_path):
    (tmp_path / "token").write_text("secret")
    with running(publication, token_file=str(tmp_path / "token")) as server:
        _open(browser, server)
        _until(browser, "name", "requires a token")
        browser.find_element(By.ID, "token").send_keys("secret")
        browser.find_element(By.ID, "use-token").click()
        _until(browser, "name", trained.NAME)
