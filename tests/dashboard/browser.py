"""A page in headless Chromium, and what holds of every page of the dashboard."""

import os
import shutil
import unittest
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from fleet import PATIENCE, wait

PICTURES = Path(os.environ.get("PICTURES", "target/dashboard"))
# What axe finds of less weight is looked at by people.
WEIGHT = {"serious", "critical"}


class Browser(unittest.TestCase):
    """A browser for all tests of a class."""

    # Where paths of pages begin, unless a test says otherwise.
    base = None

    @classmethod
    def setUpClass(cls):
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        cls.browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        cls.addClassCleanup(cls.browser.close)
        PICTURES.mkdir(parents=True, exist_ok=True)

    def page(self, width=1280, height=900, scheme="light", scripts=True, base=None, state=None):
        """A page in a window of its own; whatever the console says against it fails the test.

        A page that is open is drawn anew each second: a test that needs several closes each (`page.context.close()`).
        """
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            # Without a graphics card each frame of a transition is drawn by the processor.
            reduced_motion="reduce",
            java_script_enabled=scripts,
            base_url=base or self.base,
            ignore_https_errors=True,
            storage_state=state,
        )
        context.set_default_timeout(PATIENCE * 1000)
        self.addCleanup(context.close)
        page = context.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        self.addCleanup(lambda: self.assertEqual([one for one in said if not self.expected(one)], []))
        return page

    # That a page was refused is what some tests are about.
    allowed = ()

    def expected(self, said):
        return any(text in said for text in self.allowed)

    def picture(self, page, name):
        page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def find_nothing(self, page):
        """Axe finds nothing that weighs."""
        found = Axe().run(page).response["violations"]
        heavy = [
            f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']][:3]}"
            for one in found
            if one["impact"] in WEIGHT
        ]
        self.assertEqual(heavy, [], page.url)

    def fits(self, page):
        """Nothing is wider than the window."""
        widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        self.assertLessEqual(widths[0], widths[1], page.url)

    def until(self, page, expression):
        """Until it holds; Playwright's own way evaluates text within the page, which the page forbids."""
        wait(expression, lambda: page.evaluate(expression))

    def live(self, page):
        self.until(page, "document.getElementById('live')?.textContent === '● live'")

    def sign_in(self, page, who, token):
        page.goto("/dashboard")
        self.assertIn("Sign in", page.locator("h1").inner_text())
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/dashboard")
        self.assertIn(f"jwt:{who}", page.locator(".who").inner_text())
