// The site's search. `rank` and what it needs are pure, and once more in docs/search_index.py, which makes the index;
// a test holds the two equal. The rest reads the address (search.html?q=...) and writes the results.
"use strict";

const unisonoSearch = {
  stem(word) {
    if (word.length > 4) word = word.replace(/(?:ations?|ating|ated|ates?|ing|ed|es|(?<!s)s)$/, "");
    else if (word.length === 4) word = word.replace(/(?<!s)s$/, "");
    return word.replace(/([a-z])\1$/, "$1").replace(/e+$/, "") || word;
  },

  words(text, common) {
    const found = text.toLowerCase().match(/[a-z0-9]+/g) || [];
    return found.filter((word) => !common.includes(word)).map(this.stem);
  },

  postings(known, word) {
    const has = Object.hasOwn(known, word);
    const alike = has ? [word] : Object.keys(known).filter((other) => word.length > 1 && other.startsWith(word));
    const found = new Map();
    for (const other of alike)
      for (const [number, weight] of known[other]) found.set(number, Math.max(found.get(number) || 0, weight));
    return found;
  },

  rank(index, query) {
    const asked = this.words(query, index.common);
    const scores = new Map();
    const hits = new Map();
    for (const word of asked)
      for (const [number, weight] of this.postings(index.words, word)) {
        scores.set(number, (scores.get(number) || 0) + weight);
        hits.set(number, (hits.get(number) || 0) + 1);
      }
    const best = new Map();
    for (const [number, score] of scores) {
      const name = index.sections[number][0];
      const late = index.last.includes(name.split("/")[0]) ? 1 : 0;
      const key = [late, -score * (hits.get(number) / asked.length) ** 2, number];
      if (!best.has(name) || this.before(key, best.get(name)) < 0) best.set(name, key);
    }
    return [...best.values()].sort(this.before).map((key) => key[2]);
  },

  before(a, b) {
    return a[0] - b[0] || a[1] - b[1] || a[2] - b[2];
  },

  // The part of a text around the first word that was asked for, as pieces: [text, whether it was asked for].
  excerpt(text, asked) {
    const pieces = text.split(/([A-Za-z0-9]+)/);
    const isAsked = (piece) => {
      const short = /^[A-Za-z0-9]+$/.test(piece) ? this.stem(piece.toLowerCase()) : "";
      return short !== "" && asked.some((word) => short === word || (word.length > 2 && short.startsWith(word)));
    };
    const first = Math.max(0, pieces.findIndex(isAsked));
    let from = first;
    for (let room = 70; from > 0 && room > 0; room -= pieces[from].length) from -= 1;
    const shown = from > 0 ? [["… ", false]] : [];
    let length = 0;
    for (const piece of pieces.slice(from)) {
      if (length > 220) return [...shown, [" …", false]];
      shown.push([piece, isAsked(piece)]);
      length += piece.length;
    }
    return shown;
  },
};

if (typeof module !== "undefined") module.exports = unisonoSearch;
else
  document.addEventListener("DOMContentLoaded", () => {
    const index = window.unisonoIndex;
    const field = document.getElementById("find");
    const list = document.getElementById("found");
    const said = document.getElementById("said");
    const made = (tag, text, kind) => Object.assign(document.createElement(tag), { textContent: text, className: kind || "" });

    const show = () => {
      const asked = unisonoSearch.words(field.value, index.common);
      const ranked = unisonoSearch.rank(index, field.value);
      said.textContent = asked.length === 0 ? "Type what you look for." : ranked.length === 0
        ? "Nothing found. Try another word, or fewer words." : `${ranked.length} pages`;
      list.replaceChildren(...ranked.slice(0, 20).map((number) => {
        const [name, title, anchor, heading, text] = index.sections[number];
        const item = made("li", "");
        const link = made("a", heading ? `${title} › ${heading}` : title);
        link.href = `${name}.html${anchor ? "#" + anchor : ""}`;
        const told = made("p", "");
        told.append(...unisonoSearch.excerpt(text, asked).map(([piece, found]) => (found ? made("mark", piece) : piece)));
        item.append(link, made("span", name, "where"), told);
        return item;
      }));
    };

    field.value = new URLSearchParams(location.search).get("q") || "";
    field.addEventListener("input", () => {
      history.replaceState(null, "", "?q=" + encodeURIComponent(field.value));
      show();
    });
    show();
    field.focus();
  });
