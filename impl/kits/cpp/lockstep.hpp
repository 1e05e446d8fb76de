// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors
//
// A kit for Lockstep drivers in C++17, to be copied and included by one file.
//
// It reads messages, writes answers, numbers caches and snapshots, and refuses what it
// cannot answer. You write caches: classes with a constructor that takes the config, and
// a method for each operation, which gets fields of the message and puts fields of the
// answer. Throw a Refusal before you change anything.

#ifndef LOCKSTEP_HPP
#define LOCKSTEP_HPP

#include <unistd.h>

#include <any>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Numbers in row-major order.
struct Array {
    std::vector<long> shape;
    std::vector<float> data;
};

// The largest size of an axis: a list of so many tokens fits in memory, even if V has no
// numbers that would bound it.
constexpr long largest = 1 << 24;

using Token = std::vector<float>;  // K or V of one token: [heads * dim]
using Tokens = std::vector<Token>;

// The positions [begin, end) of a cache.
struct Snapshot {
    long begin, end;
    std::any content;
};

// An error in the place of an answer: "usage" if the call breaks a rule, or another of
// the README of drivers. The call must have changed nothing.
struct Refusal : std::runtime_error {
    std::string error;
    Refusal(std::string error, const std::string &message)
        : std::runtime_error(message), error(std::move(error)) {}
};

// --- reading JSON ----------------------------------------------------------------------

struct Value {
    enum Type { null, boolean, number, text, list, object } type = null;
    double numeric = 0;  // of a number; 1 for true
    std::string string;  // of a text; of a number as it is written
    std::vector<Value> items;
    std::vector<std::string> names;  // of the items of an object

    const Value *find(const std::string &name) const {
        for (std::size_t place = 0; place < names.size(); place++)
            if (names[place] == name) return &items[place];
        return nullptr;
    }
};

class Parser {
  public:
    explicit Parser(const std::string &line) : at(line.c_str()) {}

    Value parse() {
        Value value = read(0);
        skip();
        if (*at || value.type != Value::object) reject();
        return value;
    }

  private:
    static constexpr int deepest = 64;  // lists in lists
    const char *at;

    [[noreturn]] static void reject() {
        throw Refusal("failed", "the line is not JSON of a message");
    }

    void skip() {
        while (*at && std::strchr(" \t\r\n", *at)) at++;
    }

    void expect(char wanted) {
        skip();
        if (*at != wanted) reject();
        at++;
    }

    bool accept(const char *word) {
        if (std::strncmp(at, word, std::strlen(word))) return false;
        at += std::strlen(word);
        return true;
    }

    std::string read_text() {
        std::string text;
        expect('"');
        while (*at != '"') {
            if (!*at) reject();
            if (*at != '\\') {
                text += *at++;
            } else {
                at++;
                text += read_escape();
            }
        }
        at++;
        return text;
    }

    // What stands behind a backslash, in UTF-8.
    std::string read_escape() {
        static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        const char *found = *at ? std::strchr(letters, *at) : nullptr;
        if (found) return at++, std::string(1, meant[found - letters]);
        unsigned long code = read_unit();
        if (code >> 10 == 0x36 && *at == '\\') {
            at++;
            const unsigned long low = read_unit() ^ 0xdc00;
            if (low > 0x3ff) reject();
            code = 0x10000 + ((code & 0x3ff) << 10) + low;
        }
        if (code >> 11 == 0x1b) reject();  // half of a surrogate pair
        if (code < 0x80) return {static_cast<char>(code)};
        std::string text;
        int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        for (int place = 0; place < more; place++, code >>= 6)
            text.insert(text.begin(), static_cast<char>(0x80 | (code & 0x3f)));
        return static_cast<char>((0xff00 >> (more + 1)) | code) + text;
    }

    unsigned long read_unit() {
        if (*at != 'u' || std::strspn(at + 1, "0123456789abcdefABCDEF") < 4) reject();
        at += 5;
        return std::stoul(std::string(at - 4, at), nullptr, 16);
    }

    void read_items(Value &list, char end, int depth) {
        at++;
        for (skip(); *at != end; skip()) {
            if (!list.items.empty()) expect(',');
            if (list.type == Value::object) {
                list.names.push_back(read_text());
                expect(':');
            }
            list.items.push_back(read(depth + 1));
        }
        at++;
    }

    Value read(int depth) {
        if (depth > deepest) reject();
        Value value;
        skip();
        if (*at == '[' || *at == '{') {
            value.type = *at == '[' ? Value::list : Value::object;
            read_items(value, *at == '[' ? ']' : '}', depth);
        } else if (*at == '"') {
            value.type = Value::text;
            value.string = read_text();
        } else if (accept("true")) {
            value.type = Value::boolean;
            value.numeric = 1;
        } else if (accept("false")) {
            value.type = Value::boolean;
        } else if (!accept("null")) {
            read_number(value);
        }
        return value;
    }

    void read_number(Value &value) {
        std::size_t length = std::strspn(at, "+-.0123456789eE");
        char *end;
        value.type = Value::number;
        value.string = std::string(at, length);
        value.numeric = std::strtod(value.string.c_str(), &end);
        if (!length || *end) reject();
        at += length;
    }
};

// --- what is numbered ------------------------------------------------------------------

template <class Item> class Table {
  public:
    long add(Item item) {
        long number = 0;
        while (items.count(number)) number++;
        items.emplace(number, std::move(item));
        return number;
    }

    Item &get(long number, const std::string &name) {
        auto found = items.find(number);
        if (found == items.end())
            throw Refusal("failed",
                          name + ": there is no number " + std::to_string(number));
        return found->second;
    }

    void drop(long number, const std::string &name) {
        get(number, name);
        items.erase(number);
    }

  private:
    std::map<long, Item> items;
};

struct Kind;

struct Cache {
    const Kind *kind;
    std::any content;
};

struct Tables {
    Table<Cache> caches;
    Table<Snapshot> snapshots;
    Table<std::any> saved;
};

// --- the fields of a message, or of a config -------------------------------------------

class Message {
  public:
    Message(const Value &object, Tables &tables) : object(object), tables(tables) {}

    bool has(const std::string &name) const { return object.find(name); }
    bool is_null(const std::string &name) const { return get(name).type == Value::null; }

    // Takes 1.0 and 1e0 as well.
    long get_integer(const std::string &name) const {
        const Value &value = get(name);
        if (!is_integer(value)) throw Refusal("failed", name + " is not an integer");
        return static_cast<long>(value.numeric);
    }

    bool get_boolean(const std::string &name) const {
        return get(name, Value::boolean, "true or false").numeric != 0;
    }

    const std::string &get_text(const std::string &name) const {
        return get(name, Value::text, "a text").string;
    }

    // Texts, and nothing for null.
    std::vector<std::optional<std::string>> get_texts(const std::string &name) const {
        std::vector<std::optional<std::string>> texts;
        for (const Value &item : get(name, Value::list, "a list").items) {
            if (item.type != Value::text && item.type != Value::null)
                throw Refusal("failed", name + " has an item that is not a text");
            texts.push_back(std::nullopt);
            if (item.type == Value::text) texts.back() = item.string;
        }
        return texts;
    }

    // An item that is not an integer is a mistake of usage.
    std::vector<long> get_integers(const std::string &name) const {
        std::vector<long> integers;
        for (const Value &item : get(name, Value::list, "a list").items) {
            if (!is_integer(item))
                throw Refusal("usage", name + " has an item that is not an integer");
            integers.push_back(static_cast<long>(item.numeric));
        }
        return integers;
    }

    Message get_object(const std::string &name) const {
        return Message(get(name, Value::object, "an object"), tables);
    }

    std::vector<Message> get_objects(const std::string &name) const {
        std::vector<Message> objects;
        for (const Value &item : get(name, Value::list, "a list").items) {
            if (item.type != Value::object)
                throw Refusal("failed", name + " has an item that is not an object");
            objects.emplace_back(item, tables);
        }
        return objects;
    }

    Array get_array(const std::string &name) const {
        Message object = get_object(name);
        const std::vector<Value> &data = object.get("data", Value::list, "a list").items;
        Array array{object.get_integers("shape"), {}};
        double count = 1;
        for (long size : array.shape) {
            if (size < 0 || size > largest)
                throw Refusal("failed", name + ": a size is not in [0, "
                                            + std::to_string(largest) + "]");
            count *= static_cast<double>(size);
        }
        if (count != static_cast<double>(data.size()))
            throw Refusal("failed", name + " has not as many numbers as its shape says");
        for (const Value &item : data) array.data.push_back(to_float(item, name));
        return array;
    }

    // K or V; any shape but [1, heads, tokens, dim] is a mistake of usage.
    Tokens get_tokens(const std::string &name, long heads, long dim) const {
        Array array = get_array(name);
        const std::vector<long> &shape = array.shape;
        if (shape.size() != 4 || shape[0] != 1 || shape[1] != heads || shape[3] != dim)
            throw Refusal("usage", name + ": the shape is not [1, heads, tokens, dim]");
        Tokens tokens(static_cast<std::size_t>(shape[2]));
        auto from = array.data.begin();
        for (long head = 0; head < heads; head++)
            for (Token &token : tokens) {
                token.insert(token.end(), from, from + dim);
                from += dim;
            }
        return tokens;
    }

    // Null if the field is.
    const Snapshot *get_snapshot(const std::string &name) const {
        return is_null(name) ? nullptr : &tables.snapshots.get(get_integer(name), name);
    }

    // The snapshot is used up: frees its number.
    void use_snapshot(const std::string &name) const {
        if (!is_null(name)) tables.snapshots.drop(get_integer(name), name);
    }

    const std::any &get_saved(const std::string &name) const {
        return tables.saved.get(get_integer(name), name);
    }

  private:
    const Value &object;
    Tables &tables;

    const Value &get(const std::string &name) const {
        const Value *value = object.find(name);
        if (!value) throw Refusal("failed", "the message has no " + name);
        return *value;
    }

    const Value &get(const std::string &name, Value::Type type, const char *what) const {
        const Value &value = get(name);
        if (value.type != type) throw Refusal("failed", name + " is not " + what);
        return value;
    }

    static bool is_integer(const Value &value) {
        double number = value.numeric;
        return value.type == Value::number && number == std::floor(number)
               && std::fabs(number) < 1LL << 53;
    }

    static float to_float(const Value &value, const std::string &name) {
        const float infinity = std::numeric_limits<float>::infinity();
        bool is_text = value.type == Value::text;
        if (value.type == Value::number)
            return std::strtof(value.string.c_str(), nullptr);
        if (value.type == Value::null || (is_text && value.string == "nan")) return NAN;
        if (is_text && value.string == "inf") return infinity;
        if (is_text && value.string == "-inf") return -infinity;
        throw Refusal("failed", name + " has an item that is not a number");
    }
};

// --- the fields of an answer -----------------------------------------------------------

// A text in quotes; what would need more than a backslash becomes a question mark.
inline std::string quote(const std::string &text) {
    std::string quoted = "\"";
    for (char letter : text) {
        if (letter == '"' || letter == '\\') quoted += '\\';
        quoted += letter < ' ' || letter > '~' ? '?' : letter;
    }
    return quoted + "\"";
}

template <class List, class Format> std::string join(const List &list, Format format) {
    std::string text = "[";
    for (const auto &item : list) {
        if (text.size() > 1) text += ",";
        text += format(item);
    }
    return text + "]";
}

class Answer {
  public:
    Answer(const Kind *kind, Tables &tables) : kind(kind), tables(tables) {}

    // Anything, as JSON.
    void put_json(const std::string &name, const std::string &json) {
        text += "," + quote(name) + ":" + json;
    }

    void put_null(const std::string &name) { put_json(name, "null"); }
    void put_text(const std::string &name, const std::string &text) {
        put_json(name, quote(text));
    }
    void put_integer(const std::string &name, long number) {
        put_json(name, std::to_string(number));
    }
    void put_boolean(const std::string &name, bool truth) {
        put_json(name, truth ? "true" : "false");
    }
    void put_integers(const std::string &name, const std::vector<long> &integers) {
        put_json(name, join(integers, [](long each) { return std::to_string(each); }));
    }

    void put_array(const std::string &name, const Array &array) {
        put_data(name, array.shape, join(array.data, format_number));
    }

    // K or V as [1, heads, tokens, dim].
    void put_tokens(const std::string &name, long heads, long dim, const Tokens &tokens) {
        Array array{{1, heads, static_cast<long>(tokens.size()), dim}, {}};
        for (long head = 0; head < heads; head++)
            for (const Token &token : tokens)
                array.data.insert(array.data.end(), token.begin() + head * dim,
                                  token.begin() + (head + 1) * dim);
        put_array(name, array);
    }

    // What each row sees of each column; `additive`: as 0 and -inf.
    void put_mask(long rows, long columns, const std::vector<bool> &seen, bool additive) {
        const std::string yes = additive ? "0" : "1", no = additive ? "\"-inf\"" : "0";
        put_data("mask", {rows, columns},
                 join(seen, [&](bool each) { return each ? yes : no; }));
    }

    // A new cache, of the kind of the one that was asked.
    void put_cache(std::any content) {
        put_integer("cache", tables.caches.add({kind, std::move(content)}));
    }

    void put_snapshot(const std::string &name, const std::optional<Snapshot> &snapshot) {
        put_json(name, number_snapshot(snapshot));
    }

    void put_snapshots(const std::string &name,
                       const std::vector<std::optional<Snapshot>> &snapshots) {
        put_json(name, join(snapshots, [&](const std::optional<Snapshot> &each) {
                     return number_snapshot(each);
                 }));
    }

    void put_saved(std::any content) {
        put_integer("saved", tables.saved.add(std::move(content)));
    }

    const std::string &get_text() const { return text; }

  private:
    const Kind *kind;
    Tables &tables;
    std::string text;

    // Nine digits tell any two floats apart.
    static std::string format_number(float number) {
        char digits[32];
        if (std::isnan(number)) return "null";
        if (std::isinf(number)) return number > 0 ? "\"inf\"" : "\"-inf\"";
        std::snprintf(digits, sizeof digits, "%.9g", static_cast<double>(number));
        return digits;
    }

    void put_data(const std::string &name, const std::vector<long> &shape,
                  const std::string &data) {
        std::string sizes = join(shape, [](long each) { return std::to_string(each); });
        put_json(name, "{\"shape\":" + sizes + ",\"data\":" + data + "}");
    }

    std::string number_snapshot(const std::optional<Snapshot> &snapshot) {
        if (!snapshot) return "null";
        std::string number = std::to_string(tables.snapshots.add(*snapshot));
        return "{\"number\":" + number + ",\"begin\":" + std::to_string(snapshot->begin)
               + ",\"end\":" + std::to_string(snapshot->end) + "}";
    }
};

// --- what a driver declares ------------------------------------------------------------
// `declares` is an object of JSON: all that the README of drivers lists beside what the
// kit adds.

template <class Content> struct Operation {
    const char *name;
    void (Content::*run)(const Message &, Answer &);  // nullptr: not written yet
};

struct Kind {
    std::string contract, kind;
    std::string declares;  // {"refuses": true, "config": {…}}; the kit adds "operations"
    std::function<std::any(const Message &)> open;
    std::vector<std::string> names;  // of the operations, in their order
    std::map<std::string, std::function<void(std::any &, const Message &, Answer &)>>
        operations;
};

// Caches of class Content, whose constructor takes the config.
template <class Content>
Kind make_kind(std::string contract, std::string kind, std::string declares,
               const std::vector<Operation<Content>> &operations) {
    Kind made{std::move(contract), std::move(kind), std::move(declares), {}, {}, {}};
    made.open = [](const Message &config) { return std::any(Content(config)); };
    for (const Operation<Content> &each : operations) {
        made.names.push_back(each.name);
        auto run = each.run;
        if (run)
            made.operations[each.name] = [run](std::any &cache, const Message &message,
                                               Answer &answer) {
                (std::any_cast<Content &>(cache).*run)(message, answer);
            };
    }
    return made;
}

class Driver {
  public:
    // declares: {"name": "…", …}; the kit adds "protocol" and "contracts".
    Driver(std::string declares, std::vector<Kind> kinds)
        : declares(std::move(declares)), kinds(std::move(kinds)) {}

    // Answers line by line until the input ends. A line without an id is answered as 0.
    // What else is printed goes to the standard error.
    int run() {
        const int output = dup(1);
        dup2(2, 1);
        for (std::string line; std::getline(std::cin, line);) {
            long id = 0;
            std::string text;
            try {
                Value value = Parser(line).parse();
                Message message(value, tables);
                id = message.get_integer("id");
                text = answer(message);
            } catch (const Refusal &refusal) {
                text = format_error(refusal.error, refusal.what());
            } catch (const std::exception &error) {
                text = format_error("failed", error.what());
            }
            write_all(output, "{\"id\":" + std::to_string(id) + text + "}\n");
        }
        return 0;
    }

  private:
    std::string declares;
    std::vector<Kind> kinds;
    Tables tables;

    static std::string format_error(const std::string &error,
                                    const std::string &message) {
        return ",\"error\":" + quote(error) + ",\"message\":" + quote(message);
    }

    [[noreturn]] static void die(const std::string &why) {
        std::cerr << "lockstep.hpp: " << why << std::endl;
        std::exit(1);
    }

    static void write_all(int output, const std::string &text) {
        for (std::size_t place = 0; place < text.size();) {
            ssize_t count = write(output, text.data() + place, text.size() - place);
            if (count < 0 && errno != EINTR) die("the answer cannot be written");
            if (count > 0) place += static_cast<std::size_t>(count);
        }
    }

    // The rest of an object after its first field, on one line.
    static std::string open_object(const std::string &object) {
        std::size_t begin = object.find('{'), end = object.rfind('}');
        if (begin == std::string::npos || end == std::string::npos || end < begin)
            die("not an object of JSON: " + object);
        std::string inside = object.substr(begin + 1, end - begin - 1);
        for (char &letter : inside)
            if (letter == '\n' || letter == '\r') letter = ' ';
        bool is_empty = inside.find_first_not_of(" \t") == std::string::npos;
        return is_empty ? "" : "," + inside;
    }

    std::string answer(const Message &message) {
        const std::string &operation = message.get_text("op");
        if (operation == "hello") return hello();
        if (operation == "open") return open(message);
        if (operation == "drop") return drop(message);
        Cache &cache = tables.caches.get(message.get_integer("cache"), "cache");
        const Kind &kind = *cache.kind;
        auto found = kind.operations.find(operation);
        if (found == kind.operations.end())
            throw Refusal("missing", operation + " is not written for " + kind.kind);
        Answer fields(&kind, tables);
        found->second(cache.content, message, fields);
        return fields.get_text();
    }

    std::string hello() const {
        std::map<std::string, std::string> contracts;
        for (const Kind &kind : kinds) {
            std::string &text = contracts[kind.contract];
            if (!text.empty()) text += ",";
            text += quote(kind.kind) + ":{\"operations\":" + join(kind.names, quote)
                    + open_object(kind.declares) + "}";
        }
        std::string text;
        for (const auto &[contract, declared] : contracts)
            text += (text.empty() ? "" : ",") + quote(contract) + ":{" + declared + "}";
        return ",\"protocol\":1" + open_object(declares) + ",\"contracts\":{" + text
               + "}";
    }

    std::string open(const Message &message) {
        Message config = message.get_object("config");
        const std::string &name = config.get_text("kind");
        for (const Kind &kind : kinds)
            if (kind.kind == name) {
                Answer fields(&kind, tables);
                fields.put_cache(kind.open(config));
                return fields.get_text();
            }
        throw Refusal("missing", "this driver has no kind " + name);
    }

    // Nobody will name these again.
    std::string drop(const Message &message) {
        drop_all("caches", message, tables.caches);
        drop_all("snapshots", message, tables.snapshots);
        drop_all("saved", message, tables.saved);
        return "";
    }

    template <class Item>
    static void drop_all(const char *name, const Message &message, Table<Item> &table) {
        if (!message.has(name)) return;
        for (long number : message.get_integers(name)) table.drop(number, name);
    }
};

}  // namespace lockstep

#endif
