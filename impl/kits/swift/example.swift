// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors
//
// An example for the kit in Swift: kv and rotating of the layer contract, causal of the
// unified contract. reference/kv.py, rotating.py and causal.py are what the operations
// mean.

func usage(_ message: String) -> Refusal { Refusal("usage", message) }

// MARK: - kv and rotating: one sequence

struct Content {
    var keys: [Token] = []
    var values: [Token] = []

    func cut(_ begin: Int, _ end: Int) -> Content {
        Content(keys: [Token](keys[begin..<end]), values: [Token](values[begin..<end]))
    }
}

/// The tokens at [start, offset). With a window, the last `window` tokens stay after each
/// update.
final class Layer {
    let heads, keyDim, valueDim: Int
    let window: Int?
    var start = 0
    var content = Content()

    init(config: Message) throws {
        heads = try config.getInteger("heads")
        keyDim = try config.getInteger("key_dim")
        valueDim = try config.getInteger("value_dim")
        window = try config.isNull("window") ? nil : config.getInteger("window")
    }

    init(copying layer: Layer) {
        (heads, keyDim, valueDim) = (layer.heads, layer.keyDim, layer.valueDim)
        (window, start, content) = (layer.window, layer.start, layer.content)
    }

    func update(_ message: Message, _ answer: Answer) throws {
        let keys = try message.getTokens("keys", heads, keyDim)
        let values = try message.getTokens("values", heads, valueDim)
        let rows = try message.getInteger("rows")
        let first = offset
        guard keys.count == values.count else {
            throw usage("K of \(keys.count) tokens, V of \(values.count)")
        }
        if rows < keys.count { throw usage("\(rows) rows for \(keys.count) tokens") }
        append(Content(keys: keys, values: values))
        answer.putInteger("offset", offset)
        putContent(answer)
        putMask(answer, first, rows)
        if let window = window, count > window {
            let more = count - window
            start += more
            content = content.cut(more, count)
        }
    }

    func view(_ message: Message, _ answer: Answer) {
        if offset > 0 { return putContent(answer) }
        answer.putNull("keys")
        answer.putNull("values")
    }

    func size(_ message: Message, _ answer: Answer) { answer.putInteger("size", count) }

    func trim(_ message: Message, _ answer: Answer) throws {
        let asked = try message.getInteger("count")
        if asked < 0 { throw usage("trim: count \(asked) is negative") }
        // Once a token has slid out, an earlier window is lost.
        let trimmed = start > 0 ? 0 : min(asked, offset)
        keepBelow(offset - trimmed)
        answer.putInteger("trimmed", trimmed)
        answer.putInteger("offset", offset)
    }

    func clone(_ message: Message, _ answer: Answer) {
        answer.putCache(Layer(copying: self))
    }

    func free(_ message: Message, _ answer: Answer) {
        (start, content) = (0, Content())
        answer.putInteger("offset", 0)
    }

    // MARK: of kv alone

    func snapshot(_ message: Message, _ answer: Answer) throws {
        let begin = max(0, try message.getInteger("begin"))
        let end = offset
        let part = begin < end ? content.cut(begin, end) : nil
        answer.putSnapshot(
            "snapshot", part.map { Snapshot(begin: begin, end: end, content: $0) })
    }

    func restore(_ message: Message, _ answer: Answer) throws {
        let snapshot = try message.getSnapshot("snapshot")
        let target = try message.getInteger("target")
        let begin = snapshot?.begin ?? 0
        let end = snapshot?.end ?? offset
        let ok = 0 <= target && target <= end && offset >= begin
        if ok, let kept = snapshot?.content as? Content {
            keepBelow(begin)
            append(kept)
        }
        if ok { keepBelow(target) }
        answer.putBoolean("ok", ok)
        answer.putInteger("offset", offset)
    }

    func close(_ message: Message, _ answer: Answer) throws {
        try message.useSnapshot("snapshot")
    }

    private var count: Int { content.keys.count }

    private var offset: Int { start + count }

    private func append(_ more: Content) {
        content.keys += more.keys
        content.values += more.values
    }

    private func keepBelow(_ end: Int) { content = content.cut(0, end - start) }

    private func putContent(_ answer: Answer) {
        answer.putTokens("keys", heads, keyDim, content.keys)
        answer.putTokens("values", heads, valueDim, content.values)
    }

    /// Rows of queries, columns of tokens; rows beyond the queries see nothing.
    private func putMask(_ answer: Answer, _ first: Int, _ rows: Int) {
        var seen: [Bool] = []
        for query in first..<(first + rows) {
            for position in start..<offset {
                let isNear = window.map { position > query - $0 } ?? true
                seen.append(query < offset && position <= query && isNear)
            }
        }
        answer.putMask(rows, count, seen, additive: false)
    }
}

// MARK: - causal: many sequences in one pool

/// One token; a cell without sequences is free.
struct Cell {
    var position = 0
    var sequences: Set<Int> = []
    var keys: [Token]  // of each layer
    var values: [Token]
}

struct Pass {
    let positions, sequences, exceptions: [Int]
    let isReserving: Bool
    var places: [Int] = []  // the cell of each row
}

func check(_ what: String, _ numbers: [Int], _ count: Int) throws {
    for number in numbers where !(0..<count).contains(number) {
        throw usage("\(what) \(number) is not in [0, \(count))")
    }
}

final class Causal {
    let layers, heads, keyDim, valueDim, sequences, batch: Int
    var cells: [Cell]
    var pass: Pass?

    init(config: Message) throws {
        layers = try config.getInteger("layers")
        heads = try config.getInteger("heads")
        keyDim = try config.getInteger("key_dim")
        valueDim = try config.getInteger("value_dim")
        sequences = try config.getInteger("sequences")
        batch = try config.getInteger("batch")
        let key = Token(repeating: 0, count: heads * keyDim)
        let value = Token(repeating: 0, count: heads * valueDim)
        let cell = Cell(
            keys: [Token](repeating: key, count: layers),
            values: [Token](repeating: value, count: layers))
        let room = sequences * (try config.getInteger("capacity"))
        cells = [Cell](repeating: cell, count: room)
    }

    func forward(_ message: Message, _ answer: Answer) throws {
        var next = Pass(
            positions: try message.getIntegers("positions"),
            sequences: try message.getIntegers("sequences"),
            exceptions: try message.getIntegers("exceptions"),
            isReserving: try message.getBoolean("reserve"))
        let rows = next.positions.count
        try checkBatch(next, rows)
        try check("row", next.exceptions, rows)
        try check("row", message.getIntegers("multimodal"), rows)
        pass = nil
        next.places = cells.indices.filter { cells[$0].sequences.isEmpty }
        if !next.isReserving {
            guard rows <= next.places.count else {
                throw Refusal(
                    "cache-full", "\(rows) tokens, and room for \(next.places.count)")
            }
            for row in 0..<rows {
                cells[next.places[row]].position = next.positions[row]
                cells[next.places[row]].sequences = [next.sequences[row]]
            }
        }
        pass = next
    }

    func put(_ message: Message, _ answer: Answer) throws {
        let (pass, layer) = try getPass(message)
        let keys = try message.getTokens("keys", heads, keyDim)
        let values = try message.getTokens("values", heads, valueDim)
        let rows = pass.positions.count
        guard keys.count == rows, values.count == rows else {
            throw usage(
                "K of \(keys.count) tokens, V of \(values.count); the pass has \(rows)")
        }
        for row in 0..<rows where !pass.isReserving {
            cells[pass.places[row]].keys[layer] = keys[row]
            cells[pass.places[row]].values[layer] = values[row]
        }
    }

    func get(_ message: Message, _ answer: Answer) throws {
        let (pass, layer) = try getPass(message)
        let rows = pass.positions.count
        let seen = (0..<rows).flatMap { row in cells.map { isVisible(pass, row, $0) } }
        answer.putTokens("keys", heads, keyDim, cells.map { $0.keys[layer] })
        answer.putTokens("values", heads, valueDim, cells.map { $0.values[layer] })
        answer.putMask(rows, cells.count, seen, additive: true)
    }

    func copyPrefix(_ message: Message, _ answer: Answer) throws {
        let source = try message.getInteger("source")
        let target = try message.getInteger("target")
        let length = try message.getInteger("length")
        try check("sequence", [source, target], sequences)
        if source == target {
            throw usage("sequence \(source) cannot be copied onto itself")
        }
        if length < 0 { throw usage("length \(length) is negative") }
        pass = nil
        leave(target, 0, .max)
        for place in cells.indices
        where cells[place].sequences.contains(source) && cells[place].position < length {
            cells[place].sequences.insert(target)
        }
    }

    func remove(_ message: Message, _ answer: Answer) throws {
        let sequence = try message.getInteger("sequence")
        let begin = try message.getInteger("begin")
        let end = try message.isNull("end") ? .max : message.getInteger("end")
        try check("sequence", [sequence], sequences)
        if begin < 0 || begin > end {
            throw usage("begin \(begin) is negative, or behind the end")
        }
        let following = cells.filter {
            $0.sequences.contains(sequence) && $0.position >= end
        }
        if following.contains(where: { $0.sequences.count > 1 }) {
            throw Refusal("shared", "a token that would move is shared")
        }
        if !following.isEmpty {
            throw Refusal("not-supported", "keys cannot be turned here")
        }
        pass = nil
        leave(sequence, begin, end)
    }

    func canResume(_ message: Message, _ answer: Answer) throws {
        try check("sequence", [message.getInteger("sequence")], sequences)
        let position = try message.getInteger("position")
        if position < 0 { throw usage("position \(position) is negative") }
        answer.putBoolean("result", true)
    }

    func save(_ message: Message, _ answer: Answer) { answer.putSaved(cells) }

    func load(_ message: Message, _ answer: Answer) throws {
        guard let saved = try message.getSaved("saved") as? [Cell] else {
            throw usage("what was saved is not of a causal cache")
        }
        cells = saved
        pass = nil
    }

    private func checkBatch(_ next: Pass, _ rows: Int) throws {
        if rows != next.sequences.count {
            throw usage("\(rows) positions, but \(next.sequences.count) sequences")
        }
        if rows == 0 || rows > batch {
            throw usage("a batch of \(rows) rows; expected 1 to \(batch)")
        }
        try check("position", next.positions, .max)
        try check("sequence", next.sequences, sequences)
    }

    /// The open pass, and the layer of a message about it.
    private func getPass(_ message: Message) throws -> (Pass, Int) {
        guard let pass = pass else { throw usage("no pass is open; forward opens one") }
        let layer = try message.getInteger("layer")
        try check("layer", [layer], layers)
        return (pass, layer)
    }

    private func isVisible(_ pass: Pass, _ row: Int, _ cell: Cell) -> Bool {
        let isAhead =
            cell.position > pass.positions[row] && !pass.exceptions.contains(row)
        return !pass.isReserving && cell.sequences.contains(pass.sequences[row])
            && !isAhead
    }

    /// The sequence leaves its tokens in [begin, end).
    private func leave(_ sequence: Int, _ begin: Int, _ end: Int) {
        for place in cells.indices where (begin..<end).contains(cells[place].position) {
            cells[place].sequences.remove(sequence)
        }
    }
}

// MARK: - what is declared

@main
struct Example {
    static func main() {
        let layer = #"{"refuses": true, "config": {"mask_padding": [1, 4]}}"#
        let unified =
            #"{"refuses": true, "config": {"shift": [false], "layers": [1, 2]}}"#
        let rotating: [Operation<Layer>] = [
            ("update", { try $0.update($1, $2) }), ("state", { $0.view($1, $2) }),
            ("view", { $0.view($1, $2) }), ("size", { $0.size($1, $2) }),
            ("trim", { try $0.trim($1, $2) }), ("clone", { $0.clone($1, $2) }),
            ("free", { $0.free($1, $2) }),
        ]
        let snapshots: [Operation<Layer>] = [
            ("snapshot", { try $0.snapshot($1, $2) }),
            ("restore", { try $0.restore($1, $2) }),
            ("close", { try $0.close($1, $2) }),
        ]
        let causal: [Operation<Causal>] = [
            ("forward", { try $0.forward($1, $2) }), ("put", { try $0.put($1, $2) }),
            ("get", { try $0.get($1, $2) }),
            ("copy_prefix", { try $0.copyPrefix($1, $2) }),
            ("remove", { try $0.remove($1, $2) }),
            ("can_resume", { try $0.canResume($1, $2) }),
            ("save", { $0.save($1, $2) }), ("load", { try $0.load($1, $2) }),
        ]
        Driver(
            #"{"name": "kit-swift", "version": "1"}"#,
            [
                Kind("layer", "kv", layer, Layer.init(config:), rotating + snapshots),
                Kind("layer", "rotating", layer, Layer.init(config:), rotating),
                Kind("unified", "causal", unified, Causal.init(config:), causal),
            ]
        ).run()
    }
}
