#!/usr/bin/env node
// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors
//
// An example for the kit in JavaScript: kv and rotating of the layer contract, causal of
// the unified contract. reference/kv.py, rotating.py and causal.py are what the
// operations mean.

"use strict";

const { Driver, Kind, Refusal } = require("./lockstep.js");

function usage(message) {
  throw new Refusal("usage", message);
}

// --- kv and rotating: one sequence -----------------------------------------------------

// The tokens at [start, offset). With a window, the last `window` tokens stay after each
// update.
class Layer {
  start = 0;
  keys = [];
  values = [];

  constructor(config) {
    this.heads = config.getInteger("heads");
    this.keyDim = config.getInteger("key_dim");
    this.valueDim = config.getInteger("value_dim");
    this.window = config.isNull("window") ? Infinity : config.getInteger("window");
  }

  update(message, answer) {
    const keys = message.getTokens("keys", this.heads, this.keyDim);
    const values = message.getTokens("values", this.heads, this.valueDim);
    const rows = message.getInteger("rows");
    const first = this.offset;
    if (keys.length !== values.length)
      usage(`K of ${keys.length} tokens, V of ${values.length}`);
    if (rows < keys.length) usage(`${rows} rows for ${keys.length} tokens`);
    this.append({ keys, values });
    answer.putInteger("offset", this.offset);
    this.putContent(answer);
    this.putMask(answer, first, rows);
    const more = this.keys.length - this.window;
    if (more > 0) {
      this.start += more;
      this.keys.splice(0, more);
      this.values.splice(0, more);
    }
  }

  view(_, answer) {
    if (this.offset) return this.putContent(answer);
    answer.putNull("keys");
    answer.putNull("values");
  }

  size(_, answer) {
    answer.putInteger("size", this.keys.length);
  }

  trim(message, answer) {
    const count = message.getInteger("count");
    if (count < 0) usage(`trim: count ${count} is negative`);
    // Once a token has slid out, an earlier window is lost.
    const trimmed = this.start ? 0 : Math.min(count, this.offset);
    this.keepBelow(this.offset - trimmed);
    answer.putInteger("trimmed", trimmed);
    answer.putInteger("offset", this.offset);
  }

  clone(_, answer) {
    const copy = Object.assign(Object.create(Layer.prototype), this);
    copy.keys = [...this.keys];
    copy.values = [...this.values];
    answer.putCache(copy);
  }

  free(_, answer) {
    this.start = 0;
    this.keys = [];
    this.values = [];
    answer.putInteger("offset", 0);
  }

  // --- of kv alone

  snapshot(message, answer) {
    const begin = Math.max(0, message.getInteger("begin"));
    const end = this.offset;
    const content = { keys: this.keys.slice(begin), values: this.values.slice(begin) };
    answer.putSnapshot("snapshot", begin < end ? { begin, end, content } : null);
  }

  restore(message, answer) {
    const snapshot = message.getSnapshot("snapshot");
    const target = message.getInteger("target");
    const { begin, end } = snapshot ?? { begin: 0, end: this.offset };
    const ok = 0 <= target && target <= end && this.offset >= begin;
    if (ok && snapshot) {
      this.keepBelow(begin);
      this.append(snapshot.content);
    }
    if (ok) this.keepBelow(target);
    answer.putBoolean("ok", ok);
    answer.putInteger("offset", this.offset);
  }

  close(message) {
    message.useSnapshot("snapshot");
  }

  get offset() {
    return this.start + this.keys.length;
  }

  append({ keys, values }) {
    this.keys.push(...keys);
    this.values.push(...values);
  }

  keepBelow(end) {
    this.keys.splice(end - this.start);
    this.values.splice(end - this.start);
  }

  putContent(answer) {
    answer.putTokens("keys", this.heads, this.keyDim, this.keys);
    answer.putTokens("values", this.heads, this.valueDim, this.values);
  }

  // Rows of queries, columns of tokens; rows beyond the queries see nothing.
  putMask(answer, first, rows) {
    const seen = [];
    for (let query = first; query < first + rows; query++)
      for (let position = this.start; position < this.offset; position++) {
        const isNear = position > query - this.window;
        seen.push(query < this.offset && position <= query && isNear);
      }
    answer.putMask(rows, this.keys.length, seen, false);
  }
}

// --- causal: many sequences in one pool ------------------------------------------------

function check(what, number, count) {
  if (number < 0 || number >= count) usage(`${what} ${number} is not in [0, ${count})`);
}

function checkAll(what, numbers, count) {
  for (const number of numbers) check(what, number, count);
}

// A cell is one token; without sequences it is free. keys and values: of each layer.
function copyCells(cells) {
  return cells.map(({ position, sequences, keys, values }) => {
    return {
      position,
      sequences: new Set(sequences),
      keys: [...keys],
      values: [...values],
    };
  });
}

class Causal {
  pass = null; // the open one; places: the cell of each row

  constructor(config) {
    this.layers = config.getInteger("layers");
    this.heads = config.getInteger("heads");
    this.keyDim = config.getInteger("key_dim");
    this.valueDim = config.getInteger("value_dim");
    this.sequences = config.getInteger("sequences");
    this.batch = config.getInteger("batch");
    const capacity = config.getInteger("capacity");
    const limit = (name) => (!config.isNull(name) && config.getInteger(name)) || Infinity;
    this.window = limit("window");
    this.chunk = limit("chunk");
    this.memory = limit("memory");
    if (this.sequences > 1) this.memory = Math.max(this.memory, this.window + 1);
    if (this.memory >= capacity) this.memory = Infinity;
    const isLimited = this.memory < Infinity;
    const room = isLimited
      ? this.sequences * this.memory + this.batch
      : this.sequences * capacity;
    const fill = (dim) => Array(this.layers).fill(Array(this.heads * dim).fill(0));
    const [keys, values] = [fill(this.keyDim), fill(this.valueDim)];
    const empty = { position: 0, sequences: [], keys, values };
    this.cells = copyCells(Array(room).fill(empty));
  }

  forward(message) {
    this.pass = this.prepare(message);
    this.addCells();
  }

  // Everything of a pass that may be refused.
  prepare(message) {
    const pass = {
      positions: message.getIntegers("positions"),
      sequences: message.getIntegers("sequences"),
      exceptions: message.getIntegers("exceptions"),
      multimodal: message.getIntegers("multimodal"),
      isReserving: message.getBoolean("reserve"),
    };
    const rows = pass.positions.length;
    this.checkBatch(pass, rows);
    checkAll("row", pass.exceptions, rows);
    checkAll("row", pass.multimodal, rows);
    this.pass = null;
    if (pass.isReserving) return pass;
    this.evict(pass);
    pass.places = this.cells.filter((cell) => !cell.sequences.size);
    if (pass.places.length < rows)
      throw new Refusal("cache-full", `${rows} tokens, room for ${pass.places.length}`);
    return pass;
  }

  addCells() {
    const { positions, sequences, places, isReserving } = this.pass;
    if (isReserving) return;
    positions.forEach((position, row) => {
      places[row].position = position;
      places[row].sequences.add(sequences[row]);
    });
  }

  // Each sequence leaves what lies more than `memory` tokens before its next one.
  evict({ positions, sequences }) {
    for (let sequence = 0; sequence < this.sequences; sequence++) {
      const coming = positions.filter((_, row) => sequences[row] === sequence);
      const own = this.cells.filter((cell) => cell.sequences.has(sequence));
      const end = Math.max(-1, ...own.map((cell) => cell.position)) + 1;
      const next = coming.length ? Math.min(...coming) : end;
      this.leave(sequence, 0, next - this.memory);
    }
  }

  put(message) {
    const layer = this.getLayer(message);
    const keys = message.getTokens("keys", this.heads, this.keyDim);
    const values = message.getTokens("values", this.heads, this.valueDim);
    const rows = this.pass.positions.length;
    if (keys.length !== rows || values.length !== rows)
      usage(`K of ${keys.length} tokens, V of ${values.length}; the pass has ${rows}`);
    for (let row = 0; row < rows && !this.pass.isReserving; row++) {
      this.pass.places[row].keys[layer] = keys[row];
      this.pass.places[row].values[layer] = values[row];
    }
  }

  get(message, answer) {
    const layer = this.getLayer(message);
    const keys = this.cells.map((cell) => cell.keys[layer]);
    const values = this.cells.map((cell) => cell.values[layer]);
    const seen = this.pass.positions.flatMap((_, row) =>
      this.cells.map((cell) => this.isVisible(row, cell)),
    );
    answer.putTokens("keys", this.heads, this.keyDim, keys);
    answer.putTokens("values", this.heads, this.valueDim, values);
    answer.putMask(this.pass.positions.length, this.cells.length, seen, true);
  }

  copyPrefix(message) {
    const [source, target] = ["source", "target"].map((name) => message.getInteger(name));
    this.copyTokens(source, target, message.getInteger("length"));
  }

  copyTokens(source, target, length) {
    checkAll("sequence", [source, target], this.sequences);
    if (source === target) usage(`sequence ${source} cannot be copied onto itself`);
    if (length < 0) usage(`length ${length} is negative`);
    this.pass = null;
    this.leave(target, 0, Infinity);
    for (const { sequences, position } of this.cells)
      if (sequences.has(source) && position < length) sequences.add(target);
  }

  remove(message) {
    const sequence = message.getInteger("sequence");
    const begin = message.getInteger("begin");
    const end = message.isNull("end") ? Infinity : message.getInteger("end");
    this.removeTokens(sequence, begin, end);
  }

  removeTokens(sequence, begin, end) {
    check("sequence", sequence, this.sequences);
    if (begin < 0 || begin > end) usage(`begin ${begin} is negative, or behind the end`);
    const following = this.cells.filter(
      (cell) => cell.sequences.has(sequence) && cell.position >= end,
    );
    if (following.some((cell) => cell.sequences.size > 1))
      throw new Refusal("shared", "a token that would move is shared");
    if (following.length)
      throw new Refusal("not-supported", "keys cannot be turned here");
    this.pass = null;
    this.leave(sequence, begin, end);
  }

  canResume(message, answer) {
    const sequence = message.getInteger("sequence");
    answer.putBoolean(
      "result",
      this.isResumable(sequence, message.getInteger("position")),
    );
  }

  // Whether all tokens are there that a pass from this position on sees.
  isResumable(sequence, position) {
    check("sequence", sequence, this.sequences);
    if (position < 0) usage(`position ${position} is negative`);
    if (this.memory === Infinity) return true;
    const own = this.cells.filter((cell) => cell.sequences.has(sequence));
    const positions = own.map((cell) => cell.position);
    const first = Math.max(0, position - this.window);
    return first >= Math.min(...positions) && position <= Math.max(...positions) + 1;
  }

  // A save is loaded by a cache of the same sizes.
  getSizes() {
    const { layers, heads, keyDim, valueDim, sequences, window, chunk, memory } = this;
    return [layers, heads, keyDim, valueDim, sequences, window, chunk, memory].join();
  }

  save(_, answer) {
    answer.putSaved({ sizes: this.getSizes(), cells: copyCells(this.cells) });
  }

  load(message) {
    const { sizes, cells } = message.getSaved("saved");
    if (sizes !== this.getSizes())
      usage(`sizes ${sizes} were saved, not ${this.getSizes()}`);
    this.cells = copyCells(cells);
    this.pass = null;
  }

  checkBatch({ positions, sequences }, rows) {
    if (rows !== sequences.length)
      usage(`${rows} positions, but ${sequences.length} sequences`);
    if (!rows || rows > this.batch)
      usage(`a batch of ${rows} rows; expected 1 to ${this.batch}`);
    checkAll("position", positions, Infinity);
    checkAll("sequence", sequences, this.sequences);
  }

  getLayer(message) {
    if (!this.pass) usage("no pass is open; forward opens one");
    const layer = message.getInteger("layer");
    check("layer", layer, this.layers);
    return layer;
  }

  isVisible(row, cell) {
    const { positions, sequences, exceptions, isReserving } = this.pass;
    const query = positions[row];
    const first = Math.max(query - this.window, query - (query % this.chunk));
    const isAhead = cell.position > query && !exceptions.includes(row);
    const isOwn = !isReserving && cell.sequences.has(sequences[row]);
    return isOwn && cell.position >= first && !isAhead;
  }

  // The sequence leaves its tokens in [begin, end).
  leave(sequence, begin, end) {
    for (const { sequences, position } of this.cells)
      if (begin <= position && position < end) sequences.delete(sequence);
  }
}

// --- what is declared ------------------------------------------------------------------

const { update, view, size, trim, clone, free } = Layer.prototype;
const { snapshot, restore, close } = Layer.prototype;
const { forward, put, get, copyPrefix, remove, canResume, save, load } = Causal.prototype;
const ROTATING = { update, state: view, view, size, trim, clone, free };
const KV = { ...ROTATING, snapshot, restore, close };
const BETWEEN = { copy_prefix: copyPrefix, remove, can_resume: canResume, save, load };
const CAUSAL = { forward, put, get, ...BETWEEN };

const layer = { refuses: true, config: { mask_padding: [1, 4] } };
const unified = { refuses: true, config: { shift: [false], layers: [1, 2] } };

const kinds = [
  new Kind("layer", "kv", layer, (config) => new Layer(config), KV),
  new Kind("layer", "rotating", layer, (config) => new Layer(config), ROTATING),
  new Kind("unified", "causal", unified, (config) => new Causal(config), CAUSAL),
];

if (require.main === module)
  new Driver({ name: "kit-javascript", version: "1" }, kinds).run();

module.exports = { Causal, Layer, check, kinds, usage };
