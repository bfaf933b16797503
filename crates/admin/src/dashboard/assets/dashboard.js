// Puts what changes into the page as it comes, and asks the model while sliders move. Without it pages are whole, and forms work.
"use strict";
(() => {
  const TEXT = (node) => node.nodeType !== Node.ELEMENT_NODE;

  // Makes `old` what `fresh` is, and leaves alone what is so already: focus, what is selected, and how far a table was scrolled stay.
  const morph = (old, fresh) => {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
      return;
    }
    if (TEXT(old)) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      // What the reader opened stays open.
      if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    // Rows that say who they are stay who they are when others come before them, and keep the focus.
    const key = (node) => (TEXT(node) ? undefined : node.dataset.key);
    const known = new Map([...old.childNodes].map((node) => [key(node), node]));
    const nodes = [...fresh.childNodes];
    nodes.forEach((node, place) => {
      const here = old.childNodes[place];
      const same = key(node) === undefined ? here && key(here) === undefined && here : known.get(key(node));
      if (!same) return old.insertBefore(node, here || null);
      if (same !== here) old.insertBefore(same, here);
      morph(same, node);
    });
    while (old.childNodes.length > nodes.length) old.lastChild.remove();
  };

  const parsed = (html) => new DOMParser().parseFromString(html, "text/html");

  const live = () => {
    const path = document.body.dataset.live;
    const sign = document.getElementById("live");
    const news = document.getElementById("news");
    if (!path || !sign || !window.EventSource) return;
    const say = (text) => {
      if (sign.textContent !== text) sign.textContent = text;
    };
    // Readers of the screen hear of what turned, and not of each number.
    const marks = () => [...document.querySelectorAll(".verdict .glyph")].map((mark) => mark.textContent).join();
    let stream = null;
    let again = 0;
    let pause = 0;
    const begin = () => {
      clearTimeout(again);
      stream = new EventSource(path);
      stream.addEventListener("page", (event) => {
        const main = parsed(event.data).querySelector("main");
        if (!main) return;
        const before = marks();
        morph(document.getElementById("main"), main);
        document.documentElement.dataset.turns = String(Number(document.documentElement.dataset.turns || 0) + 1);
        if (news && marks() !== before) {
          news.textContent = [...document.querySelectorAll(".verdict")].map((line) => line.textContent).join("; ");
        }
        pause = 0;
        say("● live");
      });
      stream.addEventListener("gone", () => {
        stream.close();
        say("○ it has gone: load the page again");
      });
      stream.onerror = () => {
        say("○ not connected");
        // The browser begins again by itself after a connection that broke, and never after an answer such as 503 or 401.
        if (stream && stream.readyState === EventSource.CLOSED) {
          pause = Math.min(2 * pause + 1000, 30000);
          again = setTimeout(begin, pause);
        }
      };
    };
    const end = () => {
      clearTimeout(again);
      if (stream) stream.close();
      stream = null;
    };
    document.addEventListener("visibilitychange", () => {
      end();
      if (!document.hidden) begin();
    });
    window.addEventListener("pagehide", end);
    window.addEventListener("pageshow", (event) => event.persisted && !stream && begin());
    begin();
  };

  const sliders = () => {
    const form = document.getElementById("sliders");
    if (!form) return;
    let timer = 0;
    let asked = 0;
    const ask = async () => {
      const own = ++asked;
      const address = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
      const answer = await fetch(address, { headers: { accept: "text/html" } }).catch(() => null);
      if (!answer || !answer.ok || own !== asked) return;
      const found = parsed(await answer.text()).getElementById("found");
      if (found && own === asked) morph(document.getElementById("found"), found);
      history.replaceState(null, "", address);
    };
    form.addEventListener("input", (event) => {
      const shown = form.querySelector(`output[for="${event.target.id}"]`);
      if (shown) shown.textContent = event.target.value;
      clearTimeout(timer);
      timer = setTimeout(ask, 150);
    });
  };

  live();
  sliders();
})();
