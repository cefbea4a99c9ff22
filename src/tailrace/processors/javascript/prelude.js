// What a script finds when it runs: events made of texts, `route`, `console`, and the answer of a call as one text.
// It is evaluated before the script and keeps what it uses of the language, so that no script can break it.
(function () {
  "use strict";
  const { parse, stringify, rawJSON } = JSON;
  const { create, defineProperty, freeze, keys } = Object;
  const { isArray } = Array, { isSafeInteger } = Number, { floor } = Math;
  const PLACE = Symbol("place"), ROUTE = Symbol("route");
  const IMAGES = ["key", "before", "after"];
  const ROUTES = ["topic", "key", "subject", "stream", "index", "url", "partition_key"];
  const OPS = ["c", "u", "d", "r", "m"];
  const RISKY = "\u0002", MOST_LINES = 50, MOST_TEXT = 2000;

  let given, texts, values, lines, unsaid;

  class AnswerError extends Error {}
  AnswerError.prototype.name = "AnswerError";

  // Integers that a number cannot hold are BigInt, and come out digit for digit.
  defineProperty(BigInt.prototype, "toJSON", {
    value() { return rawJSON(this.toString()); }, writable: true, configurable: true,
  });

  function exact(name, value, context) {
    return typeof value === "number" && !isSafeInteger(value) && /^-?\d+$/.test(context.source)
      ? BigInt(context.source) : value;
  }

  function parsed(text) {
    return text === "" ? null : text[0] === RISKY ? parse(text.slice(1), exact) : parse(text);
  }

  function plain(text) {
    return text[0] === RISKY ? text.slice(1) : text;
  }

  // An image is parsed when the script first looks at it: one that nobody looked at is what it was.
  function image(number) {
    return {
      get() {
        const at = 3 * this[PLACE] + number;
        const value = values[at];
        return value === undefined ? (values[at] = parsed(texts[at])) : value;
      },
      set(value) { values[3 * this[PLACE] + number] = value === undefined ? null : value; },
      enumerable: true,
    };
  }

  const source = {
    get() {
      const place = this[PLACE];
      const more = given.op[place] === "r" ? { snapshot: "true" } : {};
      const times = { ts_ms: this.ts_ms, ts_us: this.ts_us };
      return freeze({ ...given.tables[given.table[place]], ...times, position: given.at[place], txId: given.tx_id[place], ...more });
    },
    enumerable: true,
  };

  const transaction = {
    get() { return freeze({ id: given.tx_id[this[PLACE]], total_order: given.order[this[PLACE]] }); },
    enumerable: true,
  };

  const LAZY = { key: image(0), before: image(1), after: image(2), source, transaction };

  function say(event, options) {
    if (event === null || typeof event !== "object") throw new AnswerError("route: not an event");
    if (options === null || typeof options !== "object") throw new AnswerError("route: options are an object");
    const said = {};
    for (const name of keys(options)) {
      const value = options[name];
      if (value === undefined || value === null) continue;
      if (name === "headers") said.headers = stringify(headed(value));
      else if (ROUTES.includes(name)) said[name] = word(value);
      else throw new AnswerError("route: no option '" + name + "'");
    }
    event[ROUTE] = said;
    return event;
  }

  function headed(headers) {
    if (typeof headers !== "object") throw new AnswerError("route: headers are an object");
    const found = {};
    for (const name of keys(headers)) {
      if (headers[name] !== undefined && headers[name] !== null) found[name] = word(headers[name]);
    }
    return found;
  }

  function word(value) {
    if (typeof value === "object" || typeof value === "function") throw new AnswerError("route: texts only");
    return String(value);
  }

  const EVENT = {};
  defineProperty(EVENT, "route", { value(options) { return say(this, options); } });
  defineProperty(globalThis, "route", { value: say, writable: true, configurable: true });

  function print(level) {
    return function (...words) {
      if (lines.length >= MOST_LINES) { unsaid += 1; return; }
      const text = words.map((each) => (typeof each === "string" ? each : stringify(each) ?? String(each))).join(" ");
      lines.push([level, text.slice(0, MOST_TEXT)]);
    };
  }
  const [debug, info, warn, error] = ["debug", "info", "warning", "error"].map(print);
  globalThis.console = { debug, error, info, log: info, warn };

  function events() {
    const { op, ts_us, event_id, tenant_id, table, tables } = given;
    const found = [];
    for (let place = 0; place < op.length; place++) {
      const event = create(EVENT, LAZY);
      event[PLACE] = place;
      event.op = op[place];
      event.ts_us = ts_us[place];
      event.ts_ms = floor(event.ts_us / 1000);
      event.event_id = event_id[place];
      event.tenant_id = tenant_id;
      event.table = tables[table[place]].table;
      event.tags = [];
      found.push(event);
    }
    for (const name of ["unchanged", "headers", "synthetic", "tags", "tx_end"]) {
      for (const [place, value] of given[name]) found[place][name] = value;
    }
    return found;
  }

  function listed(result, input) {
    if (result === null || result === undefined) return input;
    if (isArray(result)) return result;
    if (typeof result !== "object") throw new AnswerError("processBatch returned no events");
    if (typeof result.then === "function") throw new AnswerError("processBatch must not be async");
    return [result];
  }

  // Which change each event of the result stands for, or stands behind: the same object, a copy of it (by spread or
  // through JSON), or else the one before it in the result.
  function settle(result, all) {
    const stands = blank(all.length), beside = [];
    let ids = null, last = 0;
    for (let at = 0; at < result.length; at++) {
      const event = result[at];
      if (event === null || event === undefined) continue;
      if (typeof event !== "object" || isArray(event)) throw new AnswerError("processBatch returned no event");
      let place = event[PLACE];
      if (place === undefined && typeof event.event_id === "string") {
        ids ??= numbered(given.event_id);
        place = ids[event.event_id];
      }
      if (place === undefined) { beside.push([last, event, true]); continue; }
      last = place;
      const one = stands[place];
      if (one === undefined) stands[place] = event;
      else if (event === all[place] && one !== event) { beside.push([place, one, false]); stands[place] = event; }
      else beside.push([place, event, false]);
    }
    return [stands, beside];
  }

  // Arrays that are made with their length are slow in QuickJS.
  function blank(length) {
    const found = [];
    for (let at = 0; at < length; at++) found.push(undefined);
    return found;
  }

  function numbered(names) {
    const found = create(null);
    for (let at = 0; at < names.length; at++) found[names[at]] = at;
    return found;
  }

  globalThis.tailrace_run = function (meta, images) {
    given = parse(meta);
    texts = images.split("\u0001");
    values = blank(texts.length);
    const all = events(), input = all.slice();
    const [stands, beside] = settle(listed(processBatch(input), input), all);
    const answer = { dropped: [], changed: [], made: [], lines: [], unsaid: 0 };
    for (let place = 0; place < all.length; place++) {
      const event = stands[place];
      if (event === undefined) answer.dropped.push(place);
      else if (event !== all[place] || touched(event, place)) {
        const found = difference(event, place, event === all[place], false);
        if (found !== null) answer.changed.push([place, found]);
      }
    }
    for (const [place, event, created] of beside) {
      answer.made.push([place, difference(event, place, false, created) ?? {}, created]);
    }
    [answer.lines, answer.unsaid] = said();
    given = texts = values = null;
    return stringify(answer);
  };

  globalThis.tailrace_lines = () => stringify(said());

  function said() {
    const found = [lines, unsaid];
    lines = [];
    unsaid = 0;
    return found;
  }
  said();

  // Whether the script may have changed an event of ours.
  function touched(event, place) {
    const at = 3 * place;
    return values[at] !== undefined || values[at + 1] !== undefined || values[at + 2] !== undefined
      || event.op !== given.op[place] || event[ROUTE] !== undefined
      || event.tags === undefined || event.tags === null || event.tags.length !== 0 || given.tags.length !== 0
      || event.table !== given.tables[given.table[place]].table;
  }

  // What an event says otherwise than the change at `place`, by column; null for nothing.
  function difference(event, place, original, created) {
    let found = null;
    if (event.table !== undefined && event.table !== given.tables[given.table[place]].table) {
      throw new AnswerError("an event cannot move to another table: route it instead");
    }
    const op = event.op === undefined ? (event.after ? "c" : "d") : event.op;
    if (op !== given.op[place]) {
      if (!OPS.includes(op)) throw new AnswerError("there is no such op: use c, u, d or r");
      (found ??= {}).op = op;
    }
    for (let number = 0; number < 3; number++) {
      const at = 3 * place + number, name = IMAGES[number];
      const value = original ? values[at] : event[name];
      if (value === undefined && (original || number === 0)) continue;
      const text = changed(value, texts[at]);
      if (text !== undefined) (found ??= {})[name] = text;
    }
    const there = original && values[3 * place + 2] === undefined ? texts[3 * place + 2] : event.after;
    if (op !== "d" && op !== "m" && !there) {
      throw new AnswerError("an event with the op c, u or r needs `after`: drop it, or set op to d");
    }
    const tags = event.tags ?? [];
    if (!isArray(tags)) throw new AnswerError("tags are a list");
    if (tags.length !== 0 || given.tags.length !== 0) (found ??= {}).tags = worded(tags);
    if (created || event[ROUTE] !== undefined) (found ??= {}).route = event[ROUTE] ?? {};
    return found;
  }

  function worded(tags) {
    for (let at = 0; at < tags.length; at++) if (typeof tags[at] !== "string") return tags.map(String);
    return tags;
  }

  // Nothing where the value is what the text says; null or a new text; or, of a text that the language would write
  // otherwise, its members: null for those that are what they were.
  function changed(value, text) {
    if (value === null || value === undefined) return text === "" ? undefined : null;
    const now = stringify(value);
    if (now === text) return undefined;
    if (text === "") return object(value, now);
    const before = parsed(text), was = stringify(before), written = plain(text);
    if (was === now) return undefined;
    return was === written ? object(value, now) : members(object(value, value), before, written);
  }

  function object(value, found) {
    if (typeof value === "object" && !isArray(value)) return found;
    throw new AnswerError("key, before and after are objects or null");
  }

  function members(value, before, text) {
    const spelled = numbers(text);
    const found = [];
    for (const name of keys(value)) {
      const now = stringify(value[name]);
      if (now === undefined) continue;
      const same = Object.hasOwn(before, name) && stringify(before[name]) === now;
      found.push([name, same ? null : stringify(value[name], spelled)]);
    }
    return found;
  }

  // A replacer that writes numbers as the text does, where the language would write them otherwise.
  function numbers(text) {
    const named = new Map(), any = new Map();
    parse(text, (name, value, context) => {
      if (typeof value === "number" && String(value) !== context.source) {
        named.set(name + "\u0000" + value, context.source);
        any.set(value, context.source);
      }
      return value;
    });
    return (name, value) => {
      const source = typeof value === "number" ? named.get(name + "\u0000" + value) ?? any.get(value) : undefined;
      return source === undefined ? value : rawJSON(source);
    };
  }
})();
