// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors
//
// A kit for Lockstep drivers in Swift 5.9 or later, to be copied beside your own files.
//
// It reads messages, writes answers, numbers caches and snapshots, and refuses what it
// cannot answer. You write caches: classes whose init takes the config, with a method for
// each operation, which gets fields of the message and puts fields of the answer. Throw a
// Refusal before you change anything.

#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#else
    import Darwin
#endif

/// Numbers in row-major order.
struct NumberArray {
    var shape: [Int]
    var data: [Float]
}

/// The largest size of an axis: a list of so many tokens fits in memory, even if V has no
/// numbers that would bound it.
private let largest = 1 << 24

/// K or V of one token: [heads * dim].
typealias Token = [Float]

/// The positions [begin, end) of a cache.
struct Snapshot {
    var begin: Int
    var end: Int
    var content: Any
}

/// An error in the place of an answer: "usage" if the call breaks a rule, or another of
/// the README of drivers. The call must have changed nothing.
struct Refusal: Error {
    let error: String
    let message: String

    init(_ error: String, _ message: String) {
        self.error = error
        self.message = message
    }
}

private func fail(_ message: String) -> Refusal { Refusal("failed", message) }

// MARK: - reading JSON

private enum Value {
    case null
    case boolean(Bool)
    case number(String)
    case text(String)
    case list([Value])
    case object([String: Value])
}

private struct Parser {
    static let deepest = 64  // lists in lists
    let line: [UInt8]
    var at = 0

    init(_ line: String) { self.line = [UInt8](line.utf8) }

    mutating func parse() throws -> [String: Value] {
        let value = try read(depth: 0)
        skip()
        guard case .object(let fields) = value, at == line.count else { throw reject() }
        return fields
    }

    func reject() -> Refusal { fail("the line is not JSON of a message: byte \(at)") }

    var next: UInt8 { at < line.count ? line[at] : 0 }

    mutating func skip() {
        while [32, 9, 13, 10].contains(next) { at += 1 }
    }

    mutating func expect(_ wanted: Character) throws {
        skip()
        guard next == wanted.asciiValue else { throw reject() }
        at += 1
    }

    mutating func accept(_ word: String) -> Bool {
        guard line[at...].starts(with: word.utf8) else { return false }
        at += word.utf8.count
        return true
    }

    mutating func readText() throws -> String {
        var text: [UInt8] = []
        try expect("\"")
        while at < line.count, line[at] != 34 {
            at += 1
            if line[at - 1] == 92 {
                text += String(try readEscape()).utf8
            } else {
                text.append(line[at - 1])
            }
        }
        guard at < line.count else { throw reject() }
        at += 1
        return String(decoding: text, as: UTF8.self)
    }

    /// What stands behind a backslash.
    mutating func readEscape() throws -> Character {
        let letters: [UInt8: UInt32] = [
            34: 34, 92: 92, 47: 47, 98: 8, 102: 12, 110: 10, 114: 13, 116: 9,
        ]
        var code = letters[next] ?? 0
        if code > 0 {
            at += 1
        } else {
            guard accept("u") else { throw reject() }
            code = try readUnit()
        }
        if code >> 10 == 0x36, accept("\\u") {
            let low = try readUnit() &- 0xdc00  // of a surrogate pair
            if low < 0x400 { code = 0x10000 + (code & 0x3ff) << 10 + low }
        }
        guard let scalar = Unicode.Scalar(code) else { throw reject() }
        return Character(scalar)
    }

    mutating func readUnit() throws -> UInt32 {
        let digits = line[at...].prefix(4)
        guard digits.count == 4, digits.allSatisfy({ Character(.init($0)).isHexDigit }),
            let unit = UInt32(String(decoding: digits, as: UTF8.self), radix: 16)
        else { throw reject() }
        at += 4
        return unit
    }

    mutating func read(depth: Int) throws -> Value {
        skip()
        guard depth <= Parser.deepest else { throw reject() }
        switch next {
        case 91: return try readList(depth: depth)
        case 123: return try readObject(depth: depth)
        case 34: return .text(try readText())
        default: break
        }
        if accept("null") { return .null }
        if accept("true") { return .boolean(true) }
        if accept("false") { return .boolean(false) }
        return try readNumber()
    }

    mutating func readList(depth: Int) throws -> Value {
        var items: [Value] = []
        at += 1
        skip()
        while next != 93 {
            if !items.isEmpty { try expect(",") }
            items.append(try read(depth: depth + 1))
            skip()
        }
        at += 1
        return .list(items)
    }

    mutating func readObject(depth: Int) throws -> Value {
        var fields: [String: Value] = [:]
        at += 1
        skip()
        while next != 125 {
            if !fields.isEmpty { try expect(",") }
            skip()
            let name = try readText()
            try expect(":")
            fields[name] = try read(depth: depth + 1)
            skip()
        }
        at += 1
        return .object(fields)
    }

    mutating func readNumber() throws -> Value {
        let begin = at
        while "+-.0123456789eE".utf8.contains(next) { at += 1 }
        let text = String(decoding: line[begin..<at], as: UTF8.self)
        guard Double(text) != nil else { throw reject() }
        return .number(text)
    }
}

// MARK: - what is numbered

private struct Table<Item> {
    private var items: [Int: Item] = [:]

    mutating func add(_ item: Item) -> Int {
        var number = 0
        while items[number] != nil { number += 1 }
        items[number] = item
        return number
    }

    func get(_ number: Int, _ name: String) throws -> Item {
        guard let item = items[number] else {
            throw fail("\(name): there is no number \(number)")
        }
        return item
    }

    mutating func drop(_ number: Int, _ name: String) throws {
        _ = try get(number, name)
        items[number] = nil
    }
}

private final class Tables {
    var caches = Table<(kind: Kind, content: Any)>()
    var snapshots = Table<Snapshot>()
    var saved = Table<Any>()
}

// MARK: - the fields of a message, or of a config

struct Message {
    fileprivate let fields: [String: Value]
    fileprivate let tables: Tables

    func isNull(_ name: String) throws -> Bool {
        if case .null = try get(name) { return true }
        return false
    }

    /// Takes 1.0 and 1e0 as well.
    func getInteger(_ name: String) throws -> Int {
        guard let integer = toInteger(try get(name)) else {
            throw fail("\(name) is not an integer")
        }
        return integer
    }

    func getBoolean(_ name: String) throws -> Bool {
        guard case .boolean(let truth) = try get(name) else {
            throw fail("\(name) is not true or false")
        }
        return truth
    }

    func getText(_ name: String) throws -> String {
        guard case .text(let text) = try get(name) else {
            throw fail("\(name) is not a text")
        }
        return text
    }

    /// Texts, and nil for null.
    func getTexts(_ name: String) throws -> [String?] {
        try toList(get(name), name).map {
            switch $0 {
            case .text(let text): return text
            case .null: return nil
            default: throw fail("\(name) has an item that is not a text")
            }
        }
    }

    /// An item that is not an integer is a mistake of usage.
    func getIntegers(_ name: String) throws -> [Int] {
        try toList(get(name), name).map {
            guard let integer = toInteger($0) else {
                throw Refusal("usage", "\(name) has an item that is not an integer")
            }
            return integer
        }
    }

    func getObject(_ name: String) throws -> Message { try toObject(get(name), name) }

    func getObjects(_ name: String) throws -> [Message] {
        try toList(get(name), name).map { try toObject($0, name) }
    }

    func getArray(_ name: String) throws -> NumberArray {
        let object = try getObject(name)
        let shape = try object.getIntegers("shape")
        let data = try toList(object.get("data"), name).map { try toFloat($0, name) }
        var count = 1.0
        for size in shape {
            guard 0...largest ~= size else {
                throw fail("\(name): a size is not in [0, \(largest)]")
            }
            count *= Double(size)
        }
        guard count == Double(data.count) else {
            throw fail("\(name) has not as many numbers as its shape says")
        }
        return NumberArray(shape: shape, data: data)
    }

    /// K or V; any shape but [1, heads, tokens, dim] is a mistake of usage.
    func getTokens(_ name: String, _ heads: Int, _ dim: Int) throws -> [Token] {
        let array = try getArray(name)
        let shape = array.shape
        guard shape.count == 4, shape[0] == 1, shape[1] == heads, shape[3] == dim else {
            let words = "\(name): shape \(shape), not [1, \(heads), tokens, \(dim)]"
            throw Refusal("usage", words)
        }
        var tokens = [Token](repeating: [], count: shape[2])
        var place = 0
        for _ in 0..<heads {
            for token in tokens.indices {
                tokens[token] += array.data[place..<(place + dim)]
                place += dim
            }
        }
        return tokens
    }

    /// nil if the field is null.
    func getSnapshot(_ name: String) throws -> Snapshot? {
        if try isNull(name) { return nil }
        return try tables.snapshots.get(getInteger(name), name)
    }

    /// The snapshot is used up: frees its number.
    func useSnapshot(_ name: String) throws {
        if try isNull(name) { return }
        try tables.snapshots.drop(getInteger(name), name)
    }

    func getSaved(_ name: String) throws -> Any {
        try tables.saved.get(getInteger(name), name)
    }

    private func toObject(_ value: Value, _ name: String) throws -> Message {
        guard case .object(let fields) = value else {
            throw fail("\(name) is not an object")
        }
        return Message(fields: fields, tables: tables)
    }

    private func get(_ name: String) throws -> Value {
        guard let value = fields[name] else { throw fail("the message has no \(name)") }
        return value
    }
}

private func toList(_ value: Value, _ name: String) throws -> [Value] {
    guard case .list(let items) = value else { throw fail("\(name) is not a list") }
    return items
}

private func toInteger(_ value: Value) -> Int? {
    guard case .number(let text) = value, let number = Double(text),
        abs(number) < 0x1p53
    else { return nil }
    return Int(exactly: number)
}

private func toFloat(_ value: Value, _ name: String) throws -> Float {
    switch value {
    case .number(let text): return Float(text) ?? .nan
    case .null, .text("nan"): return .nan
    case .text("inf"): return .infinity
    case .text("-inf"): return -.infinity
    default: throw fail("\(name) has an item that is not a number")
    }
}

// MARK: - the fields of an answer

final class Answer {
    fileprivate private(set) var text = ""
    private let kind: Kind
    private let tables: Tables

    fileprivate init(_ kind: Kind, _ tables: Tables) {
        self.kind = kind
        self.tables = tables
    }

    /// Anything, as JSON.
    func putJSON(_ name: String, _ json: String) { text += ",\(quote(name)):\(json)" }

    func putNull(_ name: String) { putJSON(name, "null") }

    func putText(_ name: String, _ text: String) { putJSON(name, quote(text)) }

    func putInteger(_ name: String, _ number: Int) { putJSON(name, String(number)) }

    func putBoolean(_ name: String, _ truth: Bool) { putJSON(name, String(truth)) }

    func putIntegers(_ name: String, _ integers: [Int]) {
        putJSON(name, join(integers.map { String($0) }))
    }

    func putArray(_ name: String, _ array: NumberArray) {
        putData(name, array.shape, array.data.map(formatNumber))
    }

    /// K or V as [1, heads, tokens, dim].
    func putTokens(_ name: String, _ heads: Int, _ dim: Int, _ tokens: [Token]) {
        var array = NumberArray(shape: [1, heads, tokens.count, dim], data: [])
        for head in 0..<heads {
            for token in tokens { array.data += token[(head * dim)..<((head + 1) * dim)] }
        }
        putArray(name, array)
    }

    /// What each row sees of each column; `additive`: as 0 and -inf.
    func putMask(_ rows: Int, _ columns: Int, _ seen: [Bool], additive: Bool) {
        let (yes, no) = additive ? ("0", "\"-inf\"") : ("1", "0")
        putData("mask", [rows, columns], seen.map { $0 ? yes : no })
    }

    /// A new cache, of the kind of the one that was asked.
    func putCache(_ content: Any) {
        putInteger("cache", tables.caches.add((kind, content)))
    }

    /// null for nil.
    func putSnapshot(_ name: String, _ snapshot: Snapshot?) {
        putJSON(name, number(snapshot))
    }

    func putSnapshots(_ name: String, _ snapshots: [Snapshot?]) {
        putJSON(name, join(snapshots.map(number)))
    }

    func putSaved(_ content: Any) { putInteger("saved", tables.saved.add(content)) }

    private func putData(_ name: String, _ shape: [Int], _ texts: [String]) {
        let sizes = join(shape.map { String($0) })
        putJSON(name, "{\"shape\":\(sizes),\"data\":\(join(texts))}")
    }

    private func number(_ snapshot: Snapshot?) -> String {
        guard let snapshot = snapshot else { return "null" }
        let number = tables.snapshots.add(snapshot)
        return
            "{\"number\":\(number),\"begin\":\(snapshot.begin),\"end\":\(snapshot.end)}"
    }
}

private func join(_ texts: [String]) -> String {
    "[" + texts.joined(separator: ",") + "]"
}

/// A text in quotes; what would need more than a backslash becomes a question mark.
private func quote(_ text: String) -> String {
    var quoted = "\""
    for letter in text.unicodeScalars {
        if letter == "\"" || letter == "\\" { quoted += "\\" }
        quoted.unicodeScalars.append((" "..."~").contains(letter) ? letter : "?")
    }
    return quoted + "\""
}

/// As many digits as tell any two floats apart.
private func formatNumber(_ number: Float) -> String {
    if number.isNaN { return "null" }
    if number.isInfinite { return number > 0 ? "\"inf\"" : "\"-inf\"" }
    return number.description
}

// MARK: - what a driver declares
// `declares` is an object of JSON: all that the README of drivers lists beside what the
// kit adds.

/// An operation of caches C; nil: declared, but not written yet.
typealias Operation<C> = (name: String, run: ((C, Message, Answer) throws -> Void)?)

final class Kind {
    fileprivate let contract: String
    fileprivate let kind: String
    fileprivate let declares: String
    fileprivate let names: [String]
    fileprivate let open: (Message) throws -> Any
    fileprivate var operations: [String: (Any, Message, Answer) throws -> Void] = [:]

    /// declares: {"refuses": true, "config": {…}}; the kit adds "operations". open: gets
    /// the config.
    init<C>(
        _ contract: String, _ kind: String, _ declares: String,
        _ open: @escaping (Message) throws -> C, _ operations: [Operation<C>]
    ) {
        self.contract = contract
        self.kind = kind
        self.declares = declares
        self.open = open
        names = operations.map { $0.name }
        for (name, run) in operations {
            guard let run = run else { continue }
            self.operations[name] = { cache, message, answer in
                guard let cache = cache as? C else {
                    throw fail("a cache of another type")
                }
                try run(cache, message, answer)
            }
        }
    }
}

final class Driver {
    private let declares: String
    private let kinds: [Kind]
    private let tables = Tables()

    /// declares: {"name": "…", …}; the kit adds "protocol" and "contracts".
    init(_ declares: String, _ kinds: [Kind]) {
        self.declares = declares
        self.kinds = kinds
    }

    /// Answers line by line until the input ends. A line without an id is answered as 0.
    /// What else is printed goes to the standard error.
    func run() {
        let output = dup(1)
        dup2(2, 1)
        while let line = readLine() {
            var id = 0
            var text = ""
            do {
                text = try answer(line, &id)
            } catch {
                let refusal = error as? Refusal ?? fail("\(error)")
                let (name, words) = (quote(refusal.error), quote(refusal.message))
                text = ",\"error\":\(name),\"message\":\(words)"
            }
            writeAll("{\"id\":\(id)\(text)}\n", to: output)
        }
    }

    private func answer(_ line: String, _ id: inout Int) throws -> String {
        var parser = Parser(line)
        let message = Message(fields: try parser.parse(), tables: tables)
        id = try message.getInteger("id")
        switch try message.getText("op") {
        case "hello": return hello()
        case "open": return try open(message)
        case "drop": return try drop(message)
        case let operation: return try operate(operation, message)
        }
    }

    private func hello() -> String {
        var contracts: [String: [String]] = [:]
        for kind in kinds {
            let names = join(kind.names.map(quote)), rest = openObject(kind.declares)
            let text = "\(quote(kind.kind)):{\"operations\":\(names)\(rest)}"
            contracts[kind.contract, default: []].append(text)
        }
        let texts = contracts.map {
            "\(quote($0.key)):{\($0.value.joined(separator: ","))}"
        }
        let declared = texts.sorted().joined(separator: ",")
        return ",\"protocol\":1\(openObject(declares)),\"contracts\":{\(declared)}"
    }

    private func open(_ message: Message) throws -> String {
        let config = try message.getObject("config")
        let name = try config.getText("kind")
        guard let kind = kinds.first(where: { $0.kind == name }) else {
            throw Refusal("missing", "this driver has no kind \(name)")
        }
        let answer = Answer(kind, tables)
        answer.putCache(try kind.open(config))
        return answer.text
    }

    /// Nobody will name these again.
    private func drop(_ message: Message) throws -> String {
        func list(_ name: String) throws -> [Int] {
            message.fields[name] == nil ? [] : try message.getIntegers(name)
        }
        for number in try list("caches") { try tables.caches.drop(number, "caches") }
        for number in try list("snapshots") {
            try tables.snapshots.drop(number, "snapshots")
        }
        for number in try list("saved") { try tables.saved.drop(number, "saved") }
        return ""
    }

    private func operate(_ operation: String, _ message: Message) throws -> String {
        let (kind, content) = try tables.caches.get(message.getInteger("cache"), "cache")
        guard let run = kind.operations[operation] else {
            throw Refusal("missing", "\(operation) is not written for \(kind.kind)")
        }
        let answer = Answer(kind, tables)
        try run(content, message, answer)
        return answer.text
    }
}

private func writeAll(_ text: String, to output: Int32) {
    var rest = [UInt8](text.utf8)[...]
    while !rest.isEmpty {
        let count = rest.withUnsafeBytes { write(output, $0.baseAddress, $0.count) }
        if count < 0, errno != EINTR { fatalError("the answer cannot be written") }
        rest = rest.dropFirst(max(0, count))
    }
}

/// The rest of an object after its first field, on one line.
private func openObject(_ object: String) -> String {
    guard let begin = object.firstIndex(of: "{"), let end = object.lastIndex(of: "}"),
        begin < end
    else { fatalError("not an object of JSON: \(object)") }
    let inside = object[begin..<end].dropFirst().map { $0.isNewline ? " " : $0 }
    return inside.allSatisfy { $0.isWhitespace } ? "" : ",\(String(inside))"
}
