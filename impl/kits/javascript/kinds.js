#!/usr/bin/env node
// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors
//
// A cache of each kind for the kit in JavaScript, as short as it can be: most declare the
// operations alone that a kind needs, and `config` names the sizes that they can do.
// The files of reference/ are what the operations mean.

"use strict";

const { Driver, Kind, Part, Refusal } = require("./lockstep.js");
const { Causal, Layer, check, kinds, usage } = require("./example.js");

const [KV, ROTATING, CAUSAL] = kinds;

function multiply(shape) {
  return shape.reduce((all, size) => all * size, 1);
}

// An array of zeros, or of the arrays of rows below each other.
function zeros(shape) {
  return { shape, data: Array(multiply(shape)).fill(0) };
}

function stack(arrays) {
  const [{ shape }] = arrays;
  const data = arrays.flatMap((array) => array.data);
  return { shape: [arrays.length, ...shape.slice(1)], data };
}

function unstack({ shape: [rows, ...shape], data }) {
  const size = multiply(shape);
  return Array.from({ length: rows }, (_, row) => ({
    shape: [1, ...shape],
    data: data.slice(row * size, (row + 1) * size),
  }));
}

// The columns of two arrays [rows, heads, columns, dim], one behind the other.
function join(left, right) {
  const [rows, heads, , dim] = right.shape;
  const data = Array.from({ length: rows * heads }, (_, block) =>
    [left, right].flatMap((array) => {
      const size = array.shape[2] * dim;
      return array.data.slice(block * size, (block + 1) * size);
    }),
  ).flat();
  return { shape: [rows, heads, left.shape[2] + right.shape[2], dim], data };
}

// --- layer: state ----------------------------------------------------------------------

// The recurrent state of one sequence, or of the rows of a batch: two arrays; offset: how
// many tokens a sequence has read.
class State {
  offset = 0;

  constructor(config, rows = 1) {
    const sizes = ["heads", "key_dim", "value_dim", "conv_width"];
    const [heads, keys, values, width] = sizes.map((name) => config.getInteger(name));
    this.conv = zeros([rows, width - 1, heads * keys]);
    this.delta = zeros([rows, heads, keys, values]);
  }

  // The lengths of the writes for so many tokens: all at once.
  boundaries(message, answer) {
    const length = message.getInteger("length");
    if (length < 1) usage(`${length} tokens`);
    this.due = length;
    answer.putIntegers("lengths", [length]);
  }

  read(_, answer) {
    answer.putArray("conv", this.conv);
    answer.putArray("delta", this.delta);
  }

  write(message, answer) {
    const length = message.getInteger("length");
    if (length !== this.due) usage(`${length} tokens, not the ${this.due} that are due`);
    this.set(message.getArray("conv"), message.getArray("delta"));
    this.offset += length;
    answer.putInteger("offset", this.offset);
  }

  set(conv, delta) {
    if (`${conv.shape}` !== `${this.conv.shape}`) usage(`conv: shape [${conv.shape}]`);
    if (`${delta.shape}` !== `${this.delta.shape}`)
      usage(`delta: shape [${delta.shape}]`);
    Object.assign(this, { conv, delta });
  }
}

// --- layer: pooled ---------------------------------------------------------------------

// All tokens; an entry is the mean of a window of them.
class Pooled extends Layer {
  constructor(config) {
    super(config);
    this.pool = config.getInteger("pool");
    this.overlap = config.getInteger("overlap");
  }

  poolTokens(tokens) {
    const count = Math.floor(tokens.length / this.pool);
    return Array.from({ length: count }, (_, entry) => {
      const begin = Math.max(0, entry * this.pool - this.overlap);
      const pooled = tokens.slice(begin, (entry + 1) * this.pool);
      const add = (sum, token) => sum.map((number, place) => number + token[place]);
      return pooled.reduce(add).map((sum) => Math.fround(sum / pooled.length));
    });
  }

  putContent(answer) {
    const [keys, values] = [this.keys, this.values].map((all) => this.poolTokens(all));
    answer.putTokens("keys", this.heads, this.keyDim, keys);
    answer.putTokens("values", this.heads, this.valueDim, values);
  }

  putMask(answer, first, rows) {
    const count = Math.floor(this.offset / this.pool);
    const seen = [];
    for (let query = first; query < first + rows; query++)
      for (let entry = 1; entry <= count; entry++)
        seen.push(query < this.offset && entry * this.pool <= query + 1);
    answer.putMask(rows, count, seen, false);
  }
}

// --- batched ---------------------------------------------------------------------------

// Rows of one or several parts, of which each has all rows: a list has several parts.
class Batch {
  constructor(config) {
    this.count = config.getInteger("rows");
    if (this.count < 1) usage(`a batch of ${this.count} rows`);
    const list = config.getText("kind") === "batch-list";
    const configs = list ? config.getObjects("parts") : [config];
    this.parts = configs.map((part) =>
      part.getText("kind") === "batch-state"
        ? new StateRows(part, this.count)
        : new TokenRows(part, this.count),
    );
  }

  padLeft(message) {
    const padding = message.getIntegers("padding");
    if (padding.length !== this.count || Math.min(...padding) !== 0)
      usage(`padding [${padding}] of ${this.count} rows`);
    if (this.parts.some((part) => part.offsets.some((offset) => offset !== 0)))
      usage("only an empty batch is padded on the left");
    for (const part of this.parts) part.offsets = padding.map((count) => 0 - count);
  }

  getPart(message) {
    return this.parts[message.has("part") ? message.getInteger("part") : 0];
  }

  offsets(message, answer) {
    answer.putIntegers("offsets", this.getPart(message).offsets);
  }
}

for (const name of ["makeMask", "update", "read", "write"])
  Batch.prototype[name] = function (message, answer) {
    this.getPart(message)[name](message, answer);
  };

// K and V of all columns, those of padding, too. offsets: the position of each row's next
// column.
class TokenRows {
  constructor(config, count) {
    const limit = (name) => (config.isNull(name) ? Infinity : config.getInteger(name));
    this.window = limit("window");
    this.chunk = limit("chunk");
    this.isAdditive = config.getText("mask_form") === "additive";
    this.heads = config.getInteger("heads");
    this.dims = ["key_dim", "value_dim"].map((name) => config.getInteger(name));
    this.offsets = Array(count).fill(0);
    this.width = 0;
  }

  makeMask(message, answer) {
    const length = message.getInteger("length");
    const columns = Array.from({ length: this.width + length }, (_, column) => column);
    const seen = this.offsets.flatMap((offset) =>
      columns.slice(this.width).flatMap((query) =>
        columns.map((column) => {
          const shift = offset - this.width;
          return this.isVisible(query + shift, column + shift);
        }),
      ),
    );
    const shape = [this.offsets.length, 1, length, columns.length];
    const [yes, no] = this.isAdditive ? [0, -Infinity] : [1, 0];
    answer.putArray("mask", { shape, data: seen.map((each) => (each ? yes : no)) });
  }

  isVisible(query, position) {
    const first = Math.max(0, query - this.window + 1, query - (query % this.chunk));
    return first <= position && position <= query;
  }

  update(message, answer) {
    const arrays = ["keys", "values"].map((name) => message.getArray(name));
    arrays.forEach(({ shape }, place) => {
      const wanted = [this.offsets.length, this.heads, shape[2], this.dims[place]];
      if (`${shape}` !== `${wanted}`) usage(`shape [${shape}], not [${wanted}]`);
    });
    for (const [place, name] of ["keys", "values"].entries()) {
      const array = arrays[place];
      this[name] = this.width ? join(this[name], array) : array;
      answer.putArray(name, this[name]);
    }
    const length = this.keys.shape[2] - this.width;
    this.width += length;
    this.offsets = this.offsets.map((offset) => offset + length);
  }
}

class StateRows extends State {
  constructor(config, count) {
    super(config, count);
    this.offsets = Array(count).fill(0);
  }

  // Which columns are tokens.
  makeMask(message, answer) {
    const length = message.getInteger("length");
    const data = this.offsets.flatMap((offset) =>
      Array.from({ length }, (_, column) => Number(offset + column >= 0)),
    );
    answer.put("mask", { shape: [this.offsets.length, length], data, dtype: "bool" });
  }

  write(message) {
    const length = message.getInteger("length");
    this.set(message.getArray("conv"), message.getArray("delta"));
    this.offsets = this.offsets.map((offset) => offset + length);
  }
}

// --- unified ---------------------------------------------------------------------------

// The memory is the window.
class Sliding extends Causal {
  constructor(config) {
    const window = config.isNull("window") ? null : config.getInteger("window");
    super(config.merge({ memory: window }));
  }
}

class Recurrent extends Causal {
  constructor(config) {
    super(config);
    const open = () => Array.from({ length: this.layers }, () => new State(config));
    this.states = Array.from({ length: this.sequences }, open);
  }

  prepare(message) {
    const pass = super.prepare(message);
    const counts = [...new Set(pass.sequences)].map(
      (sequence) => pass.sequences.filter((each) => each === sequence).length,
    );
    if (new Set(counts).size > 1)
      throw new Refusal("not-supported", `sequences with ${counts} rows in one batch`);
    return pass;
  }

  // In the order of their first rows.
  listStates(message) {
    const layer = this.getLayer(message);
    return [...new Set(this.pass.sequences)].map((each) => this.states[each][layer]);
  }

  readStates(message, answer) {
    const states = this.listStates(message);
    for (const name of ["conv", "delta"])
      answer.putArray(name, stack(states.map((state) => state[name])));
  }

  writeStates(message) {
    const [convs, deltas] = ["conv", "delta"].map((name) =>
      unstack(message.getArray(name)),
    );
    this.listStates(message).forEach((state, number) => {
      if (!this.pass.isReserving) state.set(convs[number], deltas[number]);
    });
  }
}

// One image, which rows that stand for one put.
class Encoder extends Causal {
  image = null;

  prepare(message) {
    const pass = super.prepare(message.merge({ reserve: true }));
    return { ...pass, isReserving: message.getBoolean("reserve") };
  }

  addCells() {}

  put(message) {
    const layer = this.getLayer(message);
    if (this.pass.isReserving && !this.image?.[layer]) return;
    const image = {
      keys: message.getTokens("keys", this.heads, this.keyDim),
      values: message.getTokens("values", this.heads, this.valueDim),
    };
    const count = this.image?.[layer]?.keys.length ?? image.keys.length;
    if (!count || image.keys.length !== count || image.values.length !== count)
      usage(
        `K of ${image.keys.length} tokens, V of ${image.values.length}, not ${count}`,
      );
    if (this.pass.isReserving) return;
    if (!this.pass.multimodal.length) usage("no row of this pass stands for an image");
    this.image = { ...this.image, [layer]: image };
  }

  get(message, answer) {
    const layer = this.getLayer(message);
    const image = this.image?.[layer];
    if (!image) {
      answer.putNull("keys");
      answer.putNull("values");
      return;
    }
    answer.putTokens("keys", this.heads, this.keyDim, image.keys);
    answer.putTokens("values", this.heads, this.valueDim, image.values);
  }

  cached(_, answer) {
    answer.putBoolean("cached", this.image !== null);
  }
}

const UNIFIED = {
  ...{ recurrent: Recurrent, encoder: Encoder },
  ...{ causal: Causal, swa: Sliding, "swa-memory": Causal, chunked: Causal },
};

// A cache for each type of layer: all of them take a batch, or none.
class Wrapper {
  constructor(config) {
    this.parts = config.getObjects("caches").map((part) => {
      return new UNIFIED[part.getText("kind")](config.merge(part));
    });
  }

  forward(message) {
    for (const part of this.parts) part.pass = null;
    const passes = this.parts.map((part) => part.prepare(message));
    this.parts.forEach((part, number) => {
      part.pass = passes[number];
      part.addCells();
    });
  }
}

for (const name of ["put", "get", "cached", "readStates", "writeStates"])
  Wrapper.prototype[name] = function (message, answer) {
    this.parts[message.getInteger("type")][name](message, answer);
  };

// --- prefix ----------------------------------------------------------------------------

function countCommon(left, right) {
  const end = left.findIndex((token, place) => token !== right[place]);
  return end < 0 ? left.length : end;
}

// The tokens of the last request, and the kv layers that have read them.
class Session {
  request = null;
  stored = [];

  constructor(config) {
    const layer = config.merge({ window: null });
    this.below = config.getTexts("layers").map(() => new Part(KV, new Layer(layer)));
  }

  begin(message, answer) {
    const tokens = message.getIntegers("tokens");
    if (this.request) usage("a request is open; close or cancel it first");
    if (!tokens.length) usage("the request is empty; there is nothing to compute");
    this.checkCheckpoints(message.getIntegers("checkpoints"));
    const reuse = Math.min(this.match(tokens), tokens.length - 1);
    this.below.forEach((layer) => layer.content.keepBelow(reuse));
    this.request = tokens;
    answer.putIntegers("remaining", tokens.slice(reuse));
  }

  checkCheckpoints(checkpoints) {
    if (checkpoints.length) usage("a session makes no captures");
  }

  // Brings the layers to a stored conversation; returns how much of it there is.
  match(tokens) {
    const common = countCommon(this.stored, tokens);
    this.stored = this.stored.slice(0, Math.min(common, tokens.length - 1));
    return common;
  }

  layers(_, answer) {
    const layers = this.below.map((layer) => ({
      cache: answer.numberPart(layer),
      offset: layer.content.offset,
    }));
    answer.put("layers", layers);
  }

  extend(message) {
    const tokens = message.getIntegers("tokens");
    this.getRequest().push(...tokens);
  }

  close(_, answer) {
    const offsets = this.below.map((layer) => layer.content.offset);
    const reached = Math.min(this.getRequest().length, ...offsets);
    answer.putInteger("stored", this.store(this.request.slice(0, reached)));
    this.request = null;
  }

  cancel(message, answer) {
    this.close(message, answer);
  }

  store(tokens) {
    if (tokens.length) this.stored = tokens;
    return this.stored.length;
  }

  getRequest() {
    return this.request ?? usage("no request is open; begin opens one");
  }
}

// Many conversations.
class Trie extends Session {
  // Of kv layers no captures are needed.
  checkCheckpoints(checkpoints) {
    if (checkpoints.some((each) => each < 1)) usage(`checkpoints [${checkpoints}]`);
  }

  match(tokens) {
    const lengths = this.stored.map((each) => countCommon(each.tokens, tokens));
    const common = Math.max(0, ...lengths);
    this.below.forEach(({ content: layer }, number) => {
      layer.keepBelow(0);
      if (common) layer.append(this.stored[lengths.indexOf(common)].layers[number]);
    });
    return common;
  }

  store(tokens) {
    const layers = this.below.map(({ content: { keys, values } }) => ({
      keys: [...keys],
      values: [...values],
    }));
    if (tokens.length) this.stored.push({ tokens, layers });
    return tokens.length;
  }
}

// A conversation for each sequence of a causal cache whose keys are never turned.
class Slots {
  constructor(config) {
    const count = config.getInteger("slots");
    this.context = config.getInteger("context");
    this.keep = config.getInteger("keep");
    const none = { window: null, chunk: null, memory: null, layers: 1 };
    const sizes = { sequences: count, capacity: this.context, batch: this.context };
    this.cache = new Causal(config.merge({ ...none, ...sizes }));
    this.part = new Part(CAUSAL, this.cache);
    this.slots = Array.from({ length: count }, (_, number) => ({
      ...{ number, conversation: [], held: 0, reserved: 0, inUse: false },
    }));
  }

  // The slot that has most of the request already.
  begin(message, answer) {
    const tokens = message.getIntegers("tokens");
    if (!tokens.length) usage("the request is empty; there is nothing to compute");
    const free = this.slots.filter((slot) => !slot.inUse);
    if (!free.length) throw new Refusal("no-slot", "all slots are in use");
    const common = free.map((slot) => countCommon(listHeld(slot), tokens));
    const most = Math.max(...common);
    const slot = free[common.indexOf(most)];
    const held = Math.min(most, tokens.length - 1);
    this.cache.removeTokens(slot.number, held, Infinity);
    Object.assign(slot, { conversation: tokens, held, inUse: true });
    answer.putInteger("slot", slot.number);
  }

  below(_, answer) {
    answer.putInteger("cache", answer.numberPart(this.part));
  }

  extend(message) {
    const tokens = message.getIntegers("tokens");
    this.getOpen(message).conversation.push(...tokens);
  }

  // The middle of the conversation goes if there is no room. What is behind it cannot
  // move, so all of it is computed again.
  reserve(message, answer) {
    const slot = this.getOpen(message);
    const count = message.getInteger("count");
    const most = Math.min(slot.conversation.length - slot.held, this.context - this.keep);
    if (count < 1 || count > most) usage(`${count} tokens cannot be computed now`);
    if (slot.held + count > this.context) {
      const room = Math.max(count, Math.floor((this.context - this.keep) / 2));
      const end = Math.max(this.keep, this.keep + slot.held + room - this.context);
      const isTail = end === slot.held;
      this.cache.removeTokens(slot.number, isTail ? this.keep : 0, Infinity);
      slot.conversation.splice(this.keep, end - this.keep);
      slot.held = isTail ? this.keep : 0;
    }
    slot.reserved = count;
    answer.putIntegers(
      "positions",
      Array.from({ length: count }, (_, place) => slot.held + place),
    );
  }

  commit(message) {
    const slot = this.getOpen(message);
    const count = message.getInteger("count");
    if (count !== slot.reserved) usage(`${count} tokens, ${slot.reserved} were reserved`);
    slot.held += count;
    slot.reserved = 0;
  }

  close(message, answer) {
    const slot = this.getOpen(message);
    this.cache.removeTokens(slot.number, slot.held, Infinity);
    Object.assign(slot, { conversation: listHeld(slot), reserved: 0, inUse: false });
    answer.putInteger("stored", slot.held);
  }

  cancel(message, answer) {
    this.close(message, answer);
  }

  getTokens(message, answer) {
    answer.putIntegers("tokens", listHeld(this.slots[message.getInteger("slot")]));
  }

  getRemaining(message, answer) {
    const { conversation, held } = this.slots[message.getInteger("slot")];
    answer.putIntegers("tokens", conversation.slice(held));
  }

  getOpen(message) {
    const number = message.getInteger("slot");
    const slot = this.slots[number];
    return slot?.inUse ? slot : usage(`no request is open in slot ${number}`);
  }
}

function listHeld({ conversation, held }) {
  return conversation.slice(0, held);
}

// --- paged -----------------------------------------------------------------------------

function add(numbers) {
  return numbers.reduce((sum, number) => sum + number, 0);
}

// Where a request of so many tokens has blocks; of a state, where its last token is.
function listPlaces({ type, size }, end) {
  const last = Math.ceil(end / size) - 1;
  return type === "state"
    ? [last]
    : Array.from({ length: last + 1 }, (_, place) => place);
}

// A block manager that reuses nothing: requests hold their blocks until they end.
class Blocks {
  constructor(config) {
    this.groups = config.getObjects("groups").map((group) => {
      const type = group.getText("type");
      const size = group.getInteger("block");
      const width = group.has("width") ? group.getInteger("width") : 0;
      return { type, size, width };
    });
    this.count = config.getInteger("blocks");
    this.longest = config.getInteger("max_length");
    this.unused = Array.from({ length: this.count }, (_, block) => block);
    this.requests = new Map();
  }

  openRequest(message) {
    const name = message.getText("request");
    const tokens = message.getIntegers("tokens");
    if (this.requests.has(name)) usage(`there is a request ${name} already`);
    if (!tokens.length) usage("a request has at least one token");
    if (!message.isNull("namespace") && !message.getText("namespace"))
      usage("a namespace has a name");
    const blocks = this.groups.map(({ type, size }) =>
      type === "full" ? Math.ceil(tokens.length / size) : 0,
    );
    if (tokens.length > this.longest || add(blocks) > this.count)
      usage(`${tokens.length} tokens are too many`);
    const tables = this.groups.map(() => []);
    this.requests.set(name, { tokens, tables, computed: 0, scheduled: 0 });
  }

  schedule(message, answer) {
    const request = this.getRequest(message);
    const { tokens, computed, tables } = request;
    const count = Math.min(message.getInteger("count"), tokens.length - computed);
    if (request.scheduled) usage("it is in this step already");
    if (count < 1) usage("it has no token to compute");
    const end = computed + count;
    this.groups.forEach((group, number) => this.slide(group, tables[number], computed));
    const places = this.groups.map((group, number) =>
      listPlaces(group, end).filter((place) => tables[number][place] === undefined),
    );
    if (places.flat().length > this.unused.length) {
      answer.putNull("start");
      return;
    }
    places.forEach((all, number) => {
      for (const place of all) tables[number][place] = this.unused.pop();
    });
    request.scheduled = count;
    answer.putInteger("start", computed);
  }

  // Frees the blocks before the oldest position that a query attends to.
  slide({ type, size, width }, table, query) {
    let first = 0;
    if (type === "sliding") first = query - width + 1;
    if (type === "chunked") first = query - (query % width);
    if (type === "state") first = query - 1;
    for (let place = 0; (place + 1) * size <= first; place++) {
      if (Number.isInteger(table[place])) this.unused.push(table[place]);
      table[place] = null;
    }
  }

  run() {
    for (const request of this.requests.values()) {
      request.computed += request.scheduled;
      request.scheduled = 0;
    }
  }

  free(message) {
    const { tables } = this.getRequest(message);
    this.unused.push(...tables.flat().filter(Number.isInteger));
    this.requests.delete(message.getText("request"));
  }

  tables(message, answer) {
    const { tables } = this.getRequest(message);
    const whole = (table) => Array.from(table, (block) => block ?? null);
    answer.put("tables", tables.map(whole));
  }

  copies(_, answer) {
    answer.put("copies", []);
  }

  getRequest(message) {
    const name = message.getText("request");
    return this.requests.get(name) ?? usage(`there is no request ${name}`);
  }
}

// --- what is declared ------------------------------------------------------------------

// operations: those that programs have. Each method of the class answers the message of
// its name. config: the sizes that the cache can do.
function makeKind(contract, kind, operations, Cache, config = {}) {
  const functions = {};
  for (let { prototype } = Cache; prototype !== Object.prototype;) {
    for (const name of Object.getOwnPropertyNames(prototype)) {
      const message = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
      functions[message] ??= Object.getOwnPropertyDescriptor(prototype, name).value;
    }
    prototype = Object.getPrototypeOf(prototype);
  }
  const declares = { refuses: true, operations, config };
  return new Kind(contract, kind, declares, (fields) => new Cache(fields), functions);
}

const PASS = ["forward", "put", "get"];
const REQUEST = ["begin", "feed", "close"];
const STEP = ["open", "schedule", "run", "free"];
const PLAIN = { shift: [false] };
const STATES = { ...PLAIN, slots: [null] };
const LAYERS = { layers: [["kv"], ["kv", "kv"]] };
const CELLS = { ...PLAIN, layers: [["causal"]], several_users: [false] };
const NO_REUSE = { prefix_cache: [false], lookahead: [0] };
const LISTS = [[{ kind: "batch-kv" }, { kind: "batch-state" }]];
const WRAPPED = [
  [{ kind: "causal" }, { kind: "swa", window: 2 }],
  [{ kind: "encoder" }, { kind: "recurrent" }],
];

const all = [
  ...kinds,
  makeKind("layer", "state", ["update"], State),
  makeKind("layer", "pooled", ["update"], Pooled),
  ...["kv", "rotating", "state"].map((kind) =>
    makeKind("batched", `batch-${kind}`, ["open", "update"], Batch),
  ),
  makeKind("batched", "batch-list", ["open", "update"], Batch, { caches: LISTS }),
  ...["swa", "swa-memory", "chunked", "encoder"].map((kind) =>
    makeKind("unified", kind, PASS, UNIFIED[kind], PLAIN),
  ),
  makeKind("unified", "recurrent", ["forward"], Recurrent, STATES),
  makeKind("unified", "wrapper", ["forward"], Wrapper, { ...STATES, caches: WRAPPED }),
  makeKind("prefix", "session", REQUEST, Session, LAYERS),
  makeKind("prefix", "trie", REQUEST, Trie, LAYERS),
  makeKind("prefix", "slots", REQUEST, Slots, CELLS),
  ...["full", "sliding", "chunked", "state", "hybrid"].map((kind) =>
    makeKind("paged", `paged-${kind}`, STEP, Blocks, NO_REUSE),
  ),
];

new Driver({ name: "kit-javascript-kinds", version: "1" }, all).run();
