// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors
//
// A kit for Lockstep drivers in JavaScript (Node.js 18 or later), to be copied and
// required.
//
// It reads messages, writes answers, numbers caches and snapshots, and refuses what it
// cannot answer. You write caches: classes whose constructor takes the config, with a
// method for each operation, which gets fields of the message and puts fields of the
// answer. Throw a Refusal before you change anything.

"use strict";

const fs = require("node:fs");

// An error in the place of an answer: "usage" if the call breaks a rule, or another of
// the README of drivers. The call must have changed nothing.
class Refusal extends Error {
  constructor(error, message) {
    super(message);
    this.error = error;
  }
}

function fail(message) {
  throw new Refusal("failed", message);
}

// --- what is numbered ------------------------------------------------------------------

class Table {
  items = new Map();

  add(item) {
    let number = 0;
    while (this.items.has(number)) number++;
    this.items.set(number, item);
    return number;
  }

  get(number, name) {
    if (!this.items.has(number)) fail(`${name}: there is no number ${number}`);
    return this.items.get(number);
  }

  drop(number, name) {
    this.get(number, name);
    this.items.delete(number);
  }
}

// --- the fields of a message, or of a config -------------------------------------------
// An array is {shape, data} with its numbers in row-major order, K or V of one token a
// list of heads * dim numbers, a snapshot {begin, end, content} with the positions
// [begin, end).

// The largest size of an axis: a list of so many tokens fits in memory, even if V has no
// numbers that would bound it.
const LARGEST = 1 << 24;

const SPECIAL = new Map([
  [null, NaN],
  ["nan", NaN],
  ["inf", Infinity],
  ["-inf", -Infinity],
]);

class Message {
  #fields;
  #tables;

  constructor(fields, tables) {
    this.#fields = fields;
    this.#tables = tables;
  }

  has(name) {
    return Object.hasOwn(this.#fields, name);
  }

  isNull(name) {
    return this.#get(name) === null;
  }

  // Takes 1.0 and 1e0 as well.
  getInteger(name) {
    const value = this.#get(name);
    return Number.isSafeInteger(value) ? value : fail(`${name} is not an integer`);
  }

  getBoolean(name) {
    const value = this.#get(name);
    return typeof value === "boolean" ? value : fail(`${name} is not true or false`);
  }

  getText(name) {
    const value = this.#get(name);
    return typeof value === "string" ? value : fail(`${name} is not a text`);
  }

  // Texts and nulls.
  getTexts(name) {
    const items = toList(this.#get(name), name);
    if (!items.every((item) => item === null || typeof item === "string"))
      fail(`${name} has an item that is not a text`);
    return items;
  }

  // An item that is not an integer is a mistake of usage.
  getIntegers(name) {
    const items = toList(this.#get(name), name);
    if (!items.every(Number.isSafeInteger))
      throw new Refusal("usage", `${name} has an item that is not an integer`);
    return items;
  }

  getObject(name) {
    return this.#toMessage(this.#get(name), name);
  }

  getObjects(name) {
    return toList(this.#get(name), name).map((item) => this.#toMessage(item, name));
  }

  getArray(name) {
    const object = this.getObject(name);
    const shape = object.getIntegers("shape");
    const data = toList(object.#get("data"), name).map((item) => toFloat(item, name));
    if (shape.some((size) => size < 0 || size > LARGEST))
      fail(`${name}: a size is not in [0, ${LARGEST}]`);
    const count = shape.reduce((all, size) => all * size, 1);
    if (count !== data.length) fail(`${name} has not as many numbers as its shape says`);
    return { shape, data };
  }

  // K or V; any shape but [1, heads, tokens, dim] is a mistake of usage.
  getTokens(name, heads, dim) {
    const { shape, data } = this.getArray(name);
    if (shape.length !== 4 || shape[0] !== 1 || shape[1] !== heads || shape[3] !== dim)
      throw new Refusal(
        "usage",
        `${name}: shape [${shape}], not [1, ${heads}, tokens, ${dim}]`,
      );
    const tokens = Array.from({ length: shape[2] }, () => []);
    let place = 0;
    for (let head = 0; head < heads; head++)
      for (const token of tokens) {
        token.push(...data.slice(place, place + dim));
        place += dim;
      }
    return tokens;
  }

  // Null if the field is.
  getSnapshot(name) {
    if (this.isNull(name)) return null;
    return this.#tables.snapshots.get(this.getInteger(name), name);
  }

  // The snapshot is used up: frees its number.
  useSnapshot(name) {
    if (!this.isNull(name)) this.#tables.snapshots.drop(this.getInteger(name), name);
  }

  getSaved(name) {
    return this.#tables.saved.get(this.getInteger(name), name);
  }

  // What a number of a cache stands for.
  getCache(name) {
    return this.#tables.caches.get(this.getInteger(name), name).content;
  }

  // Those caches are used up: frees their numbers.
  useCaches(name) {
    const numbers = this.getIntegers(name);
    const caches = numbers.map((number) => this.#tables.caches.get(number, name));
    numbers.forEach((number) => this.#tables.caches.drop(number, name));
    return caches.map((cache) => cache.content);
  }

  // These fields, and those of an object or message in their places.
  merge(fields) {
    const other = fields instanceof Message ? fields.#fields : fields;
    return new Message({ ...this.#fields, ...other }, this.#tables);
  }

  #toMessage(value, name) {
    return isObject(value)
      ? new Message(value, this.#tables)
      : fail(`${name} is not an object`);
  }

  #get(name) {
    return this.has(name) ? this.#fields[name] : fail(`the message has no ${name}`);
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function toList(value, name) {
  return Array.isArray(value) ? value : fail(`${name} is not a list`);
}

function toFloat(value, name) {
  if (SPECIAL.has(value)) return SPECIAL.get(value);
  if (typeof value !== "number") fail(`${name} has an item that is not a number`);
  return Math.fround(value);
}

// --- the fields of an answer -----------------------------------------------------------

class Answer {
  text = "";
  #kind;
  #tables;
  #owner;

  constructor(kind, tables, owner) {
    this.#kind = kind;
    this.#tables = tables;
    this.#owner = owner;
  }

  // Anything, as JSON.
  putJson(name, json) {
    this.text += `,${JSON.stringify(name)}:${json}`;
  }

  // Lists and objects of texts, numbers (NaN and infinity, too), true, false and null.
  put(name, value) {
    this.putJson(name, format(value));
  }

  putNull(name) {
    this.putJson(name, "null");
  }

  putText(name, text) {
    this.putJson(name, JSON.stringify(text));
  }

  putInteger(name, number) {
    this.putJson(name, String(number));
  }

  putBoolean(name, truth) {
    this.putJson(name, String(truth));
  }

  putIntegers(name, integers) {
    this.putJson(name, JSON.stringify(integers));
  }

  putArray(name, { shape, data }) {
    this.#putData(name, shape, data.map(formatNumber));
  }

  // K or V as [1, heads, tokens, dim].
  putTokens(name, heads, dim, tokens) {
    const data = [];
    for (let head = 0; head < heads; head++)
      for (const token of tokens) data.push(...token.slice(head * dim, (head + 1) * dim));
    this.putArray(name, { shape: [1, heads, tokens.length, dim], data });
  }

  // What each row sees of each column; `additive`: as 0 and -inf.
  putMask(rows, columns, seen, additive) {
    const [yes, no] = additive ? ["0", '"-inf"'] : ["1", "0"];
    this.#putData(
      "mask",
      [rows, columns],
      seen.map((each) => (each ? yes : no)),
    );
  }

  // A new cache, of the kind of the one that was asked unless it is a Part.
  putCache(content) {
    this.putInteger("cache", this.#tables.caches.add(this.#makeCache(content)));
  }

  // The number of a Part that is in the cache that was asked, and dropped with it.
  numberPart(part) {
    const { caches } = this.#tables;
    for (const [number, cache] of caches.items)
      if (cache.content === part.content) return number;
    return caches.add({ ...this.#makeCache(part), owner: this.#owner });
  }

  #makeCache(content) {
    const { kind, content: inner } =
      content instanceof Part ? content : new Part(this.#kind, content);
    return { kind, content: inner };
  }

  // null if there is none.
  putSnapshot(name, snapshot) {
    this.putJson(name, this.#number(snapshot));
  }

  putSnapshots(name, snapshots) {
    this.putJson(name, `[${snapshots.map((each) => this.#number(each))}]`);
  }

  putSaved(content) {
    this.putInteger("saved", this.#tables.saved.add(content));
  }

  #putData(name, shape, texts) {
    this.putJson(name, `{"shape":[${shape}],"data":[${texts.join(",")}]}`);
  }

  #number(snapshot) {
    if (snapshot === null) return "null";
    const { begin, end } = snapshot;
    const number = this.#tables.snapshots.add(snapshot);
    return JSON.stringify({ number, begin, end });
  }
}

function format(value) {
  if (typeof value === "number") return formatNumber(value);
  if (Array.isArray(value)) return `[${value.map(format)}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const fields = Object.entries(value);
  return `{${fields.map(([name, each]) => `${JSON.stringify(name)}:${format(each)}`)}}`;
}

function formatNumber(number) {
  if (Number.isNaN(number)) return "null";
  if (!Number.isFinite(number)) return number > 0 ? '"inf"' : '"-inf"';
  return Object.is(number, -0) ? "-0" : String(number);
}

// --- what a driver declares ------------------------------------------------------------

// declares: all that the README of drivers lists beside what the kit adds, as in
// {refuses: true, config: {…}}. open: gets the config, and the message that has it. operations: name → a method of the
// cache, which gets (message, answer); null if it is not written yet.
class Kind {
  constructor(contract, kind, declares, open, operations) {
    Object.assign(this, { contract, kind, declares, open, operations });
  }
}

// A cache of another kind than the one that was asked: of one row of a batch, or below a
// prefix cache. Its kind need not be declared.
class Part {
  constructor(kind, content) {
    Object.assign(this, { kind, content });
  }
}

class Driver {
  #declares;
  #kinds;
  #tables = { caches: new Table(), snapshots: new Table(), saved: new Table() };

  // declares: {name: "…", …}; the kit adds protocol and contracts.
  constructor(declares, kinds) {
    this.#declares = declares;
    this.#kinds = kinds;
  }

  // Answers line by line until the input ends. A line without an id is answered as 0.
  // What else is printed goes to the standard error.
  run() {
    Object.defineProperty(process, "stdout", { get: () => process.stderr });
    for (const line of readLines()) writeLine(this.#answerLine(line));
  }

  #answerLine(line) {
    let id = 0;
    try {
      const fields = JSON.parse(line);
      if (!isObject(fields)) fail("the message is not an object");
      const message = new Message(fields, this.#tables);
      id = message.getInteger("id");
      return `{"id":${id}${this.#answer(message)}}`;
    } catch (problem) {
      if (!(problem instanceof Refusal)) console.error(problem);
      return JSON.stringify({
        id,
        error: problem.error ?? "failed",
        message: problem.message,
      });
    }
  }

  #answer(message) {
    const operation = message.getText("op");
    if (operation === "hello") return this.#hello();
    if (operation === "open") return this.#open(message);
    if (operation === "drop") return this.#drop(message);
    const number = message.getInteger("cache");
    const { kind, content } = this.#tables.caches.get(number, "cache");
    const run = Object.hasOwn(kind.operations, operation) && kind.operations[operation];
    if (!run)
      throw new Refusal("missing", `${operation} is not written for ${kind.kind}`);
    const answer = new Answer(kind, this.#tables, content);
    run.call(content, message, answer);
    return answer.text;
  }

  #hello() {
    const contracts = {};
    for (const { contract, kind, declares, operations } of this.#kinds) {
      contracts[contract] ??= {};
      contracts[contract][kind] = { operations: Object.keys(operations), ...declares };
    }
    return (
      "," + JSON.stringify({ protocol: 1, ...this.#declares, contracts }).slice(1, -1)
    );
  }

  #open(message) {
    const config = message.getObject("config");
    const name = config.getText("kind");
    const kind = this.#kinds.find((each) => each.kind === name);
    if (!kind) throw new Refusal("missing", `this driver has no kind ${name}`);
    const answer = new Answer(kind, this.#tables);
    answer.putCache(kind.open(config, message));
    return answer.text;
  }

  // Nobody will name these again, nor what is in them.
  #drop(message) {
    const { caches } = this.#tables;
    for (const [name, table] of Object.entries(this.#tables))
      if (message.has(name))
        for (const number of message.getIntegers(name)) {
          const { content } = table.get(number, name);
          table.drop(number, name);
          for (const [part, { owner }] of table === caches ? [...caches.items] : [])
            if (owner !== undefined && owner === content) caches.drop(part, name);
        }
    return "";
  }
}

// Reads and writes wait, so that one answer follows each line.
function* readLines() {
  const piece = Buffer.alloc(1 << 16);
  let rest = [];
  for (let count; (count = wait(() => fs.readSync(0, piece))) > 0;) {
    let begin = 0;
    for (
      let end;
      (end = piece.subarray(0, count).indexOf(10, begin)) >= 0;
      begin = end + 1
    ) {
      yield Buffer.concat([...rest, piece.subarray(begin, end)]).toString();
      rest = [];
    }
    rest.push(Buffer.from(piece.subarray(begin, count)));
  }
  const last = Buffer.concat(rest); // it may have no end
  if (last.length) yield last.toString();
}

function writeLine(text) {
  const bytes = Buffer.from(text + "\n");
  for (let place = 0; place < bytes.length;)
    place += wait(() => fs.writeSync(1, bytes, place));
}

// A pipe that does not wait says that it is not ready.
function wait(work) {
  for (;;)
    try {
      return work();
    } catch (problem) {
      if (problem.code === "EOF") return 0;
      if (problem.code !== "EAGAIN") throw problem;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
}

module.exports = { Answer, Driver, Kind, Message, Part, Refusal };
