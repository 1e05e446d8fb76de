// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors

// An example for the kit in Go: kv and rotating of the layer contract. reference/kv.py and
// rotating.py are what the operations mean.
package main

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

// --- what is declared ------------------------------------------------------------------

func main() {
	layerConfig := `{"refuses": true, "config": {"mask_padding": [1, 4]}}`
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
	driver := Driver{
		Declares: `{"name": "kit-go", "version": "1"}`,
		Kinds: []*Kind{
			MakeKind("layer", "kv", layerConfig, openLayer, kv),
			MakeKind("layer", "rotating", layerConfig, openLayer, rotating),
		},
	}
	driver.Run()
}
