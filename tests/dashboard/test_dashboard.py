"""The dashboard in headless Chromium, in front of a balancer under load: `make test-dashboard`.

The binary is the one that PLIMSOLL_BIN names. Pictures of what was seen are left in the folder that PICTURES names.
"""

import re
import tempfile
import unittest
from pathlib import Path

from browser import Browser
from fleet import Fleet, wait


class Seen(Browser):
    """A fleet under load, and a browser."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="plimsoll-dash-")
        cls.addClassCleanup(folder.cleanup)
        cls.fleet = Fleet(Path(folder.name))
        cls.addClassCleanup(cls.fleet.end)
        cls.base = cls.fleet.listen
        cls.fleet.drive(150)
        cls.clients = cls.fleet.hold(12)
        cls.addClassCleanup(lambda: [client.close() for client in cls.clients])
        super().setUpClass()
        # What can be carried is known after two windows.
        wait("traffic", lambda: sum(member["requests"] for member in cls.fleet.members("web")) > 500)


class Dashboard(Seen):
    def places(self):
        member = f"/dashboard/groups/web/members/{self.fleet.web[0]}"
        return {
            "home": "/dashboard",
            "group": "/dashboard/groups/web",
            "shop": "/dashboard/groups/shop",
            "member": member,
            "what-if": "/dashboard/groups/web/what-if",
            "events": "/dashboard/events",
            "event": "/dashboard/events/1",
            "process": "/dashboard/process",
            "confirm": f"/dashboard/act?do=drain&group=web&member={self.fleet.web[0]}",
        }

    def test_every_page_light_dark_narrow_and_without_scripts(self):
        for name, path in self.places().items():
            for scheme, width in (("light", 1280), ("dark", 1280), ("light", 360)):
                with self.subTest(name, scheme=scheme, width=width):
                    page = self.page(width=width, scheme=scheme)
                    answer = page.goto(path)
                    self.assertEqual(answer.status, 200)
                    self.assertEqual(page.locator("h1").count(), 1)
                    self.find_nothing(page)
                    self.fits(page)
                    suffix = "narrow" if width == 360 else scheme
                    self.picture(page, f"{name}-{suffix}")
                    page.context.close()
            with self.subTest(name, scripts=False):
                page = self.page(scripts=False)
                self.assertEqual(page.goto(path).status, 200)
                self.assertTrue(page.locator("main").inner_text().strip())
                self.assertEqual(page.locator("#live").inner_text() if page.locator("#live").count() else "", "")
                page.context.close()

    def test_the_first_screen_says_what_is(self):
        page = self.page()
        page.goto("/")
        self.assertEqual(page.url, f"{self.fleet.listen}/dashboard")
        verdicts = page.locator("h2.verdict").all_inner_texts()
        self.assertTrue(any("web: 3 of 3 members serve" in text for text in verdicts), verdicts)
        rows = page.locator("table.members").first.locator("tbody tr")
        self.assertEqual(rows.count(), 3)
        self.assertEqual(page.locator("figure.chart").count(), 8)
        for row in rows.all():
            self.assertIn("● up", row.inner_text())
            self.assertTrue(row.locator("svg.bar").get_attribute("aria-label"))
        shop = page.locator("section", has=page.get_by_role("link", name="shop", exact=True)).first
        self.assertEqual(shop.locator("path.mark.reject").count() > 0, True, "the marks that were set are drawn")

    def test_the_process_shows_who_else_balances(self):
        others = lambda: [one["state"] for one in self.fleet.status()["fleet"]["balancers"]]
        wait("they hear one another", lambda: others() == ["up"])
        page = self.page()
        page.goto("/dashboard/process")
        expected = (r"lb1\s.*this one", r"lb2\s+127\.0\.0\.1:\d+\s+✔ up\s+[\d.]+ (s|min) ago\s+\d+\s+[\d.]+ %\s+1")

        def shown():
            page.reload()
            rows = page.locator("table.fleet tbody tr").all_inner_texts()
            return len(rows) == len(expected) and all(map(re.search, expected, rows))

        wait("both are shown", shown)

    def test_it_changes_by_itself_and_focus_stays(self):
        page = self.page()
        page.goto("/dashboard/groups/web")
        self.live(page)
        # The element itself: rows may change places.
        link = page.locator("table.members tbody a").first.element_handle()
        link.focus()
        numbers = page.locator("details").first
        numbers.locator("summary").click()
        link.focus()
        rate = page.locator("td[data-label=Rate]").first
        shown = lambda: (rate.inner_text(), page.locator("figure polyline").first.get_attribute("points"))
        before = shown()
        turns = int(page.evaluate("document.documentElement.dataset.turns"))
        self.until(page, f"Number(document.documentElement.dataset.turns) > {turns + 2}")
        wait("other numbers", lambda: shown() != before)
        self.assertTrue(link.evaluate("link => link === document.activeElement"), "focus stays where it was")
        self.assertTrue(numbers.evaluate("details => details.open"), "what was opened stays open")

    def test_it_begins_again_after_an_answer_that_is_no_stream(self):
        page = self.page()
        self.allowed = ("503",)
        turned = []

        def refuse(route):
            turned.append(route.request.url)
            route.fulfill(status=503, body="too many") if len(turned) <= 2 else route.continue_()

        page.route("**/dashboard/live**", refuse)
        page.goto("/dashboard")
        self.live(page)
        self.assertGreaterEqual(len(turned), 3)

    def test_the_keyboard_reaches_everything(self):
        page = self.page()
        page.goto("/dashboard")
        page.keyboard.press("Tab")
        self.assertEqual(page.evaluate("document.activeElement.textContent"), "Skip to content")
        box = page.locator(".skip").bounding_box()
        self.assertGreaterEqual(box["y"], 0, "the skip link is seen when it has the focus")
        page.keyboard.press("Enter")
        self.assertEqual(page.evaluate("document.activeElement.id"), "main")
        for _ in range(4):
            page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid", "focus is seen")

    def test_the_model_answers_sliders(self):
        page = self.page()
        page.goto("/dashboard/groups/web/what-if")
        before = page.locator("#found").inner_text()
        page.locator("#members").focus()
        page.keyboard.press("Home")
        self.assertEqual(page.locator("output[for=members]").inner_text(), "1")
        wait("another answer", lambda: page.locator("#found").inner_text() != before)
        self.assertIn("members=1", page.url)
        # The same without scripts.
        plain = self.page(scripts=False)
        plain.goto(page.url)
        line = lambda seen: re.search(r"load line\s+\S+", seen.locator("#found").inner_text())[0]
        # What was measured changes meanwhile.
        same = lambda: line(plain) == line(page)
        wait("the same answer", lambda: same() or (page.reload() and plain.reload() and same()))
        rate = page.locator("#rate")
        rate.focus()
        page.keyboard.press("End")
        self.until(page, "document.getElementById('found').innerText.includes('over the load line')")
        self.find_nothing(page)
        self.picture(page, "what-if-over")

    def test_it_only_looks_where_nobody_is_asked_who_he_is(self):
        self.allowed = ("403",)
        page = self.page()
        page.goto(self.places()["member"])
        self.assertIn("This listener only shows", page.locator("main").inner_text())
        self.assertEqual(page.locator("form[method=post]").count(), 0)
        answer = page.request.post("/dashboard/act", form={"do": "drain", "group": "web", "member": self.fleet.web[0]})
        self.assertEqual(answer.status, 403)
        answer = page.request.get("/dashboard", headers={"host": "evil.example"})
        self.assertEqual(answer.status, 421)

    def test_an_action_is_confirmed_done_and_written_down(self):
        self.allowed = ("401",)
        page = self.page(base=self.fleet.control)
        self.sign_in(page, "olga", self.fleet.token("olga"))
        cookie = next(one for one in page.context.cookies() if one["name"] == "__Host-plimsoll-token")
        self.assertTrue(cookie["httpOnly"] and cookie["secure"] and cookie["sameSite"] == "Strict", cookie)
        self.assertNotIn("plimsoll", page.evaluate("document.cookie"))
        member = self.fleet.web[1]
        page.get_by_role("link", name=member).first.click()
        page.get_by_role("link", name="Drain…").click()
        said = page.locator(".effects").inner_text()
        self.assertRegex(said, r"\d+ requests? (is|are) under way")
        self.assertRegex(said, r"the 2 others will carry \d+ % more")
        self.find_nothing(page)
        self.picture(page, "act-confirm")
        page.get_by_role("button", name=f"Drain {member}").click()
        self.assertIn("done", page.locator("h1").inner_text())
        self.find_nothing(page)
        self.fits(page)
        state = lambda: next(one for one in self.fleet.members("web") if one["name"] == member)["state"]
        self.assertEqual(state(), "draining")
        self.picture(page, "act-done")
        page.get_by_role("link", name="Go on").click()
        self.live(page)
        page.get_by_role("link", name="Undrain…").click()
        page.get_by_role("button", name=f"Undrain {member}").click()
        self.assertIn("done", page.locator("h1").inner_text())
        wait("it is back", lambda: state() == "up")
        done = [(line["verb"], line["result"], line["who"]) for line in self.fleet.audit() if line.get("target") == f"web {member}"]
        self.assertEqual(done, [(verb, result, "olga") for verb in ("drain", "undrain") for result in ("begun", "done")])
        # The cookie is good for the dashboard alone, and a form of somebody else's page for nothing.
        self.assertEqual(page.request.post("/v1/reload").status, 401)
        form = {"do": "drain", "group": "web", "member": member}
        self.assertEqual(page.request.post("/dashboard/act", form=form).status, 403)
        foreign = {"origin": "https://evil.example"}
        self.assertEqual(page.request.post("/dashboard/act", form=form, headers=foreign).status, 403)
        page.goto("/dashboard")
        page.get_by_role("button", name="Sign out").click()
        self.assertIn("Sign in", page.locator("h1").inner_text())

    def act(self, page, path, button, name):
        """Asks for it on a page, has it confirmed; what that page says. Axe looks at both."""
        page.goto(path)
        self.find_nothing(page)
        page.get_by_role("button", name=button, exact=True).click()
        self.assertIn(": done", page.locator("h1").inner_text())
        self.find_nothing(page)
        self.fits(page)
        self.picture(page, f"act-{name}-done")
        return page.locator("#outcome").inner_text()

    def test_members_listeners_and_strategies_are_changed(self):
        self.allowed = ("401", "400")
        page = self.page(base=self.fleet.control)
        self.sign_in(page, "olga", self.fleet.token("olga"))
        state = lambda name: next(one for one in self.fleet.members("web") if one["name"] == name)["state"]
        member = self.fleet.web[2]
        self.act(page, f"/dashboard/act?do=disable&group=web&member={member}", f"Disable {member}", "disable")
        self.assertEqual(state(member), "disabled")
        self.act(page, f"/dashboard/act?do=enable&group=web&member={member}", f"Enable {member}", "enable")
        wait("it is back", lambda: state(member) == "up")
        # The form of a group's page asks for the strategy.
        before = self.fleet.group("web")["strategy"]
        page.goto("/dashboard/groups/web")
        self.find_nothing(page)
        page.get_by_label("Strategy").select_option("least_connections")
        page.get_by_role("button", name="Change…").click()
        page.get_by_role("button", name="Change the strategy of web to least_connections").click()
        self.assertIn(": done", page.locator("h1").inner_text())
        self.find_nothing(page)
        self.assertEqual(self.fleet.group("web")["strategy"], "least_connections")
        self.act(page, f"/dashboard/act?do=set&group=web&value={before}", f"Change the strategy of web to {before}", "set")
        self.assertEqual(self.fleet.group("web")["strategy"], before)
        for deed, word, off in (("disable", "Disable", True), ("enable", "Enable", False)):
            self.act(page, f"/dashboard/act?do={deed}-balancing&group=shop", f"{word} balancing of shop", f"{deed}-balancing")
            self.assertEqual(self.fleet.group("shop")["balancing_disabled"], off)
        # What is not there is a page with a message.
        answer = page.goto("/dashboard/act?do=nothing")
        self.assertEqual(answer.status, 400)
        self.find_nothing(page)
        self.fits(page)
        self.picture(page, "message")
        written = {line["verb"] for line in self.fleet.audit() if line["who"] == "olga" and line["result"] == "done"}
        self.assertLessEqual({"disable", "enable", "set"}, written)

    def test_nothing_is_found_at_the_door_that_acts(self):
        self.allowed = ("401",)
        page = self.page(base=self.fleet.control)
        self.sign_in(page, "olga", self.fleet.token("olga"))
        for name, path in self.places().items():
            with self.subTest(name):
                self.assertEqual(page.goto(path).status, 200)
                self.find_nothing(page)
                self.fits(page)

    def test_who_may_only_look_is_told_so(self):
        self.allowed = ("401",)
        page = self.page(base=self.fleet.control)
        self.sign_in(page, "victor", self.fleet.token("victor"))
        page.goto(self.places()["confirm"])
        self.assertIn("jwt:victor may not drain in group web", page.locator("main").inner_text())
        self.assertEqual(page.locator("form.confirm").count(), 0)

    def test_a_token_that_does_not_count_is_not_kept(self):
        self.allowed = ("401",)
        page = self.page(base=self.fleet.control)
        page.goto("/dashboard/groups/web")
        self.find_nothing(page)
        self.picture(page, "sign-in")
        page.get_by_label("Token").fill(self.fleet.token("olga", seconds=-600))
        page.get_by_role("button", name="Sign in").click()
        self.assertTrue(page.get_by_role("alert").inner_text())
        self.assertEqual(page.context.cookies(), [])


class Trouble(Seen):
    """A fleet of its own: what happens to it is not mended again."""

    def test_members_that_fail_shed_and_have_too_much_are_seen(self):
        fleet = self.fleet
        page = self.page()
        page.goto("/dashboard")
        self.live(page)
        fleet.tell(fleet.shop[0], 0.95)
        fleet.tell(fleet.shop[1], 0.2)
        fleet.kill(2)
        # It comes without the page being loaded again.
        first = "document.querySelector('h2.verdict').textContent"
        self.until(page, f"{first}.includes('2 of 3 members serve (1 down)')")
        down = page.locator("table.members tbody tr", has_text=fleet.web[2]).first
        self.assertIn("✘ down", down.inner_text())
        self.assertIn("web", page.locator("#news").inner_text(), "who cannot see it hears it")
        told = "[...document.querySelectorAll('table.events td')].some(cell => cell.textContent.includes('alert raised'))"
        self.until(page, told)
        self.find_nothing(page)
        self.picture(page, "trouble-light")

        fleet.drive(350)
        over = lambda: (fleet.group("web")["load_line"] or {}).get("headroom") is not None
        wait("the load line is known", over)
        wait("requests wait", lambda: fleet.group("web")["latency"]["p99"] > 0.3)
        self.until(page, f"/(over|below) the load line/.test({first})")
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 360)):
            seen = self.page(width=width, scheme=scheme)
            seen.goto("/dashboard")
            self.find_nothing(seen)
            self.fits(seen)
            self.picture(seen, f"overload-{'narrow' if width == 360 else scheme}")
            seen.context.close()


if __name__ == "__main__":
    unittest.main()
