// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors

// An example for the kit in Go: kv and rotating of the layer contract, causal of the
// unified contract. reference/kv.py, rotating.py and causal.py are what the operations
// mean.
package main

import "math"

// --- kv and rotating: one sequence -----------------------------------------------------

type content struct{ keys, values []Token }

func (tokens content) cut(begin, end int) content {
	return content{
		append([]Token{}, tokens.keys[begin:end]...),
		append([]Token{}, tokens.values[begin:end]...),
	}
}

// layerCache has the tokens at [start, offset). With a window, the last `window` tokens
// stay after each update. window 0: none.
type layerCache struct {
	heads, keyDim, valueDim, window, start int
	content                                content
}

func openLayer(config Message) *layerCache {
	opened := &layerCache{
		heads:    config.GetInteger("heads"),
		keyDim:   config.GetInteger("key_dim"),
		valueDim: config.GetInteger("value_dim"),
	}
	if !config.IsNull("window") {
		opened.window = config.GetInteger("window")
	}
	return opened
}

func (layer *layerCache) update(message Message, answer *Answer) {
	keys := message.GetTokens("keys", layer.heads, layer.keyDim)
	values := message.GetTokens("values", layer.heads, layer.valueDim)
	rows, first := message.GetInteger("rows"), layer.offset()
	if len(keys) != len(values) {
		Refuse("usage", "K of %d tokens, V of %d", len(keys), len(values))
	}
	if rows < len(keys) {
		Refuse("usage", "%d rows for %d tokens", rows, len(keys))
	}
	layer.extend(content{keys, values})
	answer.PutInteger("offset", layer.offset())
	layer.putContent(answer)
	layer.putMask(answer, first, rows)
	if more := layer.count() - layer.window; layer.window > 0 && more > 0 {
		layer.start += more
		layer.content = layer.content.cut(more, layer.count())
	}
}

func (layer *layerCache) view(_ Message, answer *Answer) {
	if layer.offset() > 0 {
		layer.putContent(answer)
		return
	}
	answer.PutNull("keys")
	answer.PutNull("values")
}

func (layer *layerCache) size(_ Message, answer *Answer) {
	answer.PutInteger("size", layer.count())
}

func (layer *layerCache) trim(message Message, answer *Answer) {
	count := message.GetInteger("count")
	if count < 0 {
		Refuse("usage", "trim: count %d is negative", count)
	}
	if count > layer.offset() {
		count = layer.offset()
	}
	if layer.start > 0 {
		count = 0 // once a token has slid out, an earlier window is lost
	}
	layer.keepBelow(layer.offset() - count)
	answer.PutInteger("trimmed", count)
	answer.PutInteger("offset", layer.offset())
}

func (layer *layerCache) clone(_ Message, answer *Answer) {
	copied := *layer
	copied.content = layer.content.cut(0, layer.count())
	answer.PutCache(&copied)
}

func (layer *layerCache) free(_ Message, answer *Answer) {
	layer.content, layer.start = content{}, 0
	answer.PutInteger("offset", 0)
}

// --- of kv alone

func (layer *layerCache) snapshot(message Message, answer *Answer) {
	begin, end := message.GetInteger("begin"), layer.offset()
	if begin < 0 {
		begin = 0
	}
	if begin >= end {
		answer.PutSnapshot("snapshot", nil)
		return
	}
	answer.PutSnapshot("snapshot", &Snapshot{begin, end, layer.content.cut(begin, end)})
}

func (layer *layerCache) restore(message Message, answer *Answer) {
	snapshot, target := message.GetSnapshot("snapshot"), message.GetInteger("target")
	begin, end := 0, layer.offset()
	if snapshot != nil {
		begin, end = snapshot.Begin, snapshot.End
	}
	ok := 0 <= target && target <= end && layer.offset() >= begin
	if ok && snapshot != nil {
		layer.keepBelow(begin)
		layer.extend(snapshot.Content.(content))
	}
	if ok {
		layer.keepBelow(target)
	}
	answer.PutBoolean("ok", ok)
	answer.PutInteger("offset", layer.offset())
}

func (layer *layerCache) close(message Message, _ *Answer) { message.UseSnapshot("snapshot") }

func (layer *layerCache) count() int { return len(layer.content.keys) }

func (layer *layerCache) offset() int { return layer.start + layer.count() }

func (layer *layerCache) extend(more content) {
	layer.content.keys = append(layer.content.keys, more.keys...)
	layer.content.values = append(layer.content.values, more.values...)
}

func (layer *layerCache) keepBelow(end int) {
	layer.content = layer.content.cut(0, end-layer.start)
}

func (layer *layerCache) putContent(answer *Answer) {
	answer.PutTokens("keys", layer.heads, layer.keyDim, layer.content.keys)
	answer.PutTokens("values", layer.heads, layer.valueDim, layer.content.values)
}

// putMask puts rows of queries, columns of tokens; rows beyond the queries see nothing.
func (layer *layerCache) putMask(answer *Answer, first, rows int) {
	seen := []bool{}
	for query := first; query < first+rows; query++ {
		for position := layer.start; position < layer.offset(); position++ {
			isNear := layer.window == 0 || position > query-layer.window
			seen = append(seen, query < layer.offset() && position <= query && isNear)
		}
	}
	answer.PutMask(rows, layer.count(), seen, false)
}

// --- causal: many sequences in one pool ------------------------------------------------

// cell is one token; a cell without sequences is free. keys and values: of each layer.
type cell struct {
	position     int
	sequences    map[int]bool
	keys, values []Token
}

func (token cell) copy() cell {
	sequences := map[int]bool{}
	for sequence := range token.sequences {
		sequences[sequence] = true
	}
	keys, values := append([]Token{}, token.keys...), append([]Token{}, token.values...)
	return cell{token.position, sequences, keys, values}
}

func copyCells(cells []cell) []cell {
	copied := make([]cell, len(cells))
	for place, each := range cells {
		copied[place] = each.copy()
	}
	return copied
}

// pass is an open one. places: the cell of each row.
type pass struct {
	positions, sequences, exceptions []int
	isReserving                      bool
	places                           []int
}

type causalCache struct {
	layers, heads, keyDim, valueDim, sequences, batch int
	cells                                             []cell
	pass                                              *pass
}

func openCausal(config Message) *causalCache {
	opened := &causalCache{
		layers:    config.GetInteger("layers"),
		heads:     config.GetInteger("heads"),
		keyDim:    config.GetInteger("key_dim"),
		valueDim:  config.GetInteger("value_dim"),
		sequences: config.GetInteger("sequences"),
		batch:     config.GetInteger("batch"),
	}
	empty := cell{sequences: map[int]bool{}}
	for layer := 0; layer < opened.layers; layer++ {
		empty.keys = append(empty.keys, make(Token, opened.heads*opened.keyDim))
		empty.values = append(empty.values, make(Token, opened.heads*opened.valueDim))
	}
	for room := opened.sequences * config.GetInteger("capacity"); room > 0; room-- {
		opened.cells = append(opened.cells, empty.copy())
	}
	return opened
}

func check(what string, number, count int) {
	if number < 0 || number >= count {
		Refuse("usage", "%s %d is not in [0, %d)", what, number, count)
	}
}

func checkAll(what string, numbers []int, count int) {
	for _, number := range numbers {
		check(what, number, count)
	}
}

func (causal *causalCache) forward(message Message, _ *Answer) {
	next := &pass{
		positions:   message.GetIntegers("positions"),
		sequences:   message.GetIntegers("sequences"),
		exceptions:  message.GetIntegers("exceptions"),
		isReserving: message.GetBoolean("reserve"),
	}
	rows := len(next.positions)
	causal.checkBatch(next, rows)
	checkAll("row", next.exceptions, rows)
	checkAll("row", message.GetIntegers("multimodal"), rows)
	causal.pass = nil
	for place, each := range causal.cells {
		if len(each.sequences) == 0 {
			next.places = append(next.places, place)
		}
	}
	if !next.isReserving && len(next.places) < rows {
		Refuse("cache-full", "%d tokens, and room for %d", rows, len(next.places))
	}
	for row := 0; row < rows && !next.isReserving; row++ {
		added := &causal.cells[next.places[row]]
		added.position = next.positions[row]
		added.sequences = map[int]bool{next.sequences[row]: true}
	}
	causal.pass = next
}

func (causal *causalCache) put(message Message, _ *Answer) {
	layer := causal.getLayer(message)
	keys := message.GetTokens("keys", causal.heads, causal.keyDim)
	values := message.GetTokens("values", causal.heads, causal.valueDim)
	rows := len(causal.pass.positions)
	if len(keys) != rows || len(values) != rows {
		Refuse("usage", "K or V has not %d tokens, as the pass has", rows)
	}
	for row := 0; row < rows && !causal.pass.isReserving; row++ {
		stored := &causal.cells[causal.pass.places[row]]
		stored.keys[layer], stored.values[layer] = keys[row], values[row]
	}
}

func (causal *causalCache) get(message Message, answer *Answer) {
	layer := causal.getLayer(message)
	keys, values, seen := []Token{}, []Token{}, []bool{}
	for _, each := range causal.cells {
		keys = append(keys, each.keys[layer])
		values = append(values, each.values[layer])
	}
	for row := range causal.pass.positions {
		for _, each := range causal.cells {
			seen = append(seen, causal.isVisible(row, each))
		}
	}
	answer.PutTokens("keys", causal.heads, causal.keyDim, keys)
	answer.PutTokens("values", causal.heads, causal.valueDim, values)
	answer.PutMask(len(causal.pass.positions), len(causal.cells), seen, true)
}

func (causal *causalCache) copyPrefix(message Message, _ *Answer) {
	source, target := message.GetInteger("source"), message.GetInteger("target")
	length := message.GetInteger("length")
	checkAll("sequence", []int{source, target}, causal.sequences)
	if source == target {
		Refuse("usage", "sequence %d cannot be copied onto itself", source)
	}
	if length < 0 {
		Refuse("usage", "length %d is negative", length)
	}
	causal.pass = nil
	causal.leave(target, 0, math.MaxInt)
	for _, each := range causal.cells {
		if each.sequences[source] && each.position < length {
			each.sequences[target] = true
		}
	}
}

func (causal *causalCache) remove(message Message, _ *Answer) {
	sequence, begin := message.GetInteger("sequence"), message.GetInteger("begin")
	end, follows := math.MaxInt, false
	if !message.IsNull("end") {
		end = message.GetInteger("end")
	}
	check("sequence", sequence, causal.sequences)
	if begin < 0 || begin > end {
		Refuse("usage", "begin %d is negative, or behind the end", begin)
	}
	for _, each := range causal.cells {
		if each.sequences[sequence] && each.position >= end {
			if len(each.sequences) > 1 {
				Refuse("shared", "a token that would move is shared")
			}
			follows = true
		}
	}
	if follows {
		Refuse("not-supported", "keys cannot be turned here")
	}
	causal.pass = nil
	causal.leave(sequence, begin, end)
}

func (causal *causalCache) canResume(message Message, answer *Answer) {
	check("sequence", message.GetInteger("sequence"), causal.sequences)
	if position := message.GetInteger("position"); position < 0 {
		Refuse("usage", "position %d is negative", position)
	}
	answer.PutBoolean("result", true)
}

func (causal *causalCache) save(_ Message, answer *Answer) {
	answer.PutSaved(copyCells(causal.cells))
}

func (causal *causalCache) load(message Message, _ *Answer) {
	causal.cells = copyCells(message.GetSaved("saved").([]cell))
	causal.pass = nil
}

func (causal *causalCache) checkBatch(next *pass, rows int) {
	if rows != len(next.sequences) {
		Refuse("usage", "%d positions, but %d sequences", rows, len(next.sequences))
	}
	if rows == 0 || rows > causal.batch {
		Refuse("usage", "a batch of %d rows; expected 1 to %d", rows, causal.batch)
	}
	checkAll("position", next.positions, math.MaxInt)
	checkAll("sequence", next.sequences, causal.sequences)
}

func (causal *causalCache) getLayer(message Message) int {
	if causal.pass == nil {
		Refuse("usage", "no pass is open; forward opens one")
	}
	layer := message.GetInteger("layer")
	check("layer", layer, causal.layers)
	return layer
}

func (causal *causalCache) isVisible(row int, token cell) bool {
	open := causal.pass
	looksAhead := false
	for _, exception := range open.exceptions {
		looksAhead = looksAhead || exception == row
	}
	return !open.isReserving && token.sequences[open.sequences[row]] &&
		(token.position <= open.positions[row] || looksAhead)
}

// leave makes the sequence leave its tokens in [begin, end).
func (causal *causalCache) leave(sequence, begin, end int) {
	for _, each := range causal.cells {
		if begin <= each.position && each.position < end {
			delete(each.sequences, sequence)
		}
	}
}

// --- what is declared ------------------------------------------------------------------

func main() {
	layerConfig := `{"refuses": true, "config": {"mask_padding": [1, 4]}}`
	causalConfig := `{"refuses": true, "config": {"shift": [false], "layers": [1, 2]}}`
	rotating := []Operation[*layerCache]{
		{"update", (*layerCache).update}, {"state", (*layerCache).view},
		{"view", (*layerCache).view}, {"size", (*layerCache).size},
		{"trim", (*layerCache).trim}, {"clone", (*layerCache).clone},
		{"free", (*layerCache).free},
	}
	kv := append([]Operation[*layerCache]{
		{"snapshot", (*layerCache).snapshot}, {"restore", (*layerCache).restore},
		{"close", (*layerCache).close},
	}, rotating...)
	pool := []Operation[*causalCache]{
		{"forward", (*causalCache).forward}, {"put", (*causalCache).put},
		{"get", (*causalCache).get}, {"copy_prefix", (*causalCache).copyPrefix},
		{"remove", (*causalCache).remove}, {"can_resume", (*causalCache).canResume},
		{"save", (*causalCache).save}, {"load", (*causalCache).load},
	}
	driver := Driver{
		Declares: `{"name": "kit-go", "version": "1"}`,
		Kinds: []*Kind{
			MakeKind("layer", "kv", layerConfig, openLayer, kv),
			MakeKind("layer", "rotating", layerConfig, openLayer, rotating),
			MakeKind("unified", "causal", causalConfig, openCausal, pool),
		},
	}
	driver.Run()
}
