// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors
//
// An example for the kit in C++17: kv and rotating of the layer contract, causal of the
// unified contract. reference/kv.py, rotating.py and causal.py are what the operations
// mean.

#include "lockstep.hpp"

#include <algorithm>
#include <set>

using lockstep::Answer;
using lockstep::Message;
using lockstep::Refusal;
using lockstep::Snapshot;
using lockstep::Token;
using lockstep::Tokens;

// --- kv and rotating: one sequence -----------------------------------------------------

struct Content {
    Tokens keys, values;
};

// The tokens at [start, offset). With a window, the last `window` tokens stay after each
// update.
class Layer {
  public:
    explicit Layer(const Message &config)
        : heads(config.get_integer("heads")), key_dim(config.get_integer("key_dim")),
          value_dim(config.get_integer("value_dim")),
          window(config.is_null("window") ? 0 : config.get_integer("window")) {}

    void update(const Message &message, Answer &answer) {
        Tokens keys = message.get_tokens("keys", heads, key_dim);
        Tokens values = message.get_tokens("values", heads, value_dim);
        long rows = message.get_integer("rows"), first = get_offset();
        if (keys.size() != values.size())
            throw Refusal("usage", "K and V differ in their number of tokens");
        if (rows < static_cast<long>(keys.size()))
            throw Refusal("usage", "rows are fewer than tokens");
        append({keys, values});
        answer.put_integer("offset", get_offset());
        put_content(answer);
        put_mask(answer, first, rows);
        if (window && count() > window) {
            start += count() - window;
            content.keys.erase(content.keys.begin(), content.keys.end() - window);
            content.values.erase(content.values.begin(), content.values.end() - window);
        }
    }

    void view(const Message &, Answer &answer) {
        if (get_offset()) {
            put_content(answer);
        } else {
            answer.put_null("keys");
            answer.put_null("values");
        }
    }

    void size(const Message &, Answer &answer) { answer.put_integer("size", count()); }

    void trim(const Message &message, Answer &answer) {
        long asked = message.get_integer("count");
        if (asked < 0)
            throw Refusal("usage",
                          "trim: count " + std::to_string(asked) + " is negative");
        // Once a token has slid out, an earlier window is lost.
        long trimmed = start ? 0 : std::min(asked, get_offset());
        keep_below(get_offset() - trimmed);
        answer.put_integer("trimmed", trimmed);
        answer.put_integer("offset", get_offset());
    }

    void clone(const Message &, Answer &answer) { answer.put_cache(*this); }

    void free(const Message &, Answer &answer) {
        content = {};
        start = 0;
        answer.put_integer("offset", 0);
    }

    // --- of kv alone

    void snapshot(const Message &message, Answer &answer) {
        long end = get_offset(), begin = std::max(0L, message.get_integer("begin"));
        if (begin >= end) return answer.put_null("snapshot");
        Content part{Tokens(content.keys.begin() + begin, content.keys.end()),
                     Tokens(content.values.begin() + begin, content.values.end())};
        answer.put_snapshot("snapshot", Snapshot{begin, end, part});
    }

    void restore(const Message &message, Answer &answer) {
        const Snapshot *snapshot = message.get_snapshot("snapshot");
        long target = message.get_integer("target");
        bool ok = 0 <= target && target <= (snapshot ? snapshot->end : get_offset())
                  && (!snapshot || get_offset() >= snapshot->begin);
        if (ok && snapshot) {
            keep_below(snapshot->begin);
            append(std::any_cast<const Content &>(snapshot->content));
        }
        if (ok) keep_below(target);
        answer.put_boolean("ok", ok);
        answer.put_integer("offset", get_offset());
    }

    void close(const Message &message, Answer &) { message.use_snapshot("snapshot"); }

  private:
    long heads, key_dim, value_dim, window, start = 0;
    Content content;

    long count() const { return static_cast<long>(content.keys.size()); }
    long get_offset() const { return start + count(); }

    void append(const Content &more) {
        auto &[keys, values] = content;
        keys.insert(keys.end(), more.keys.begin(), more.keys.end());
        values.insert(values.end(), more.values.begin(), more.values.end());
    }

    void keep_below(long end) {
        content.keys.resize(static_cast<std::size_t>(end - start));
        content.values.resize(static_cast<std::size_t>(end - start));
    }

    void put_content(Answer &answer) const {
        answer.put_tokens("keys", heads, key_dim, content.keys);
        answer.put_tokens("values", heads, value_dim, content.values);
    }

    // Rows of queries, columns of tokens; rows beyond the queries see nothing.
    void put_mask(Answer &answer, long first, long rows) const {
        std::vector<bool> seen;
        for (long query = first; query < first + rows; query++)
            for (long position = start; position < get_offset(); position++)
                seen.push_back(query < get_offset() && position <= query
                               && (!window || position > query - window));
        answer.put_mask(rows, count(), seen, false);
    }
};

// --- causal: many sequences in one pool ------------------------------------------------

// One token; a cell without sequences is free.
struct Cell {
    long position;
    std::set<long> sequences;
    Tokens keys, values;  // of each layer
};

struct Pass {
    std::vector<long> positions, sequences, exceptions;
    bool is_reserving;
    std::vector<std::size_t> places;  // the cell of each row
};

class Causal {
  public:
    explicit Causal(const Message &config)
        : layers(config.get_integer("layers")), heads(config.get_integer("heads")),
          key_dim(config.get_integer("key_dim")),
          value_dim(config.get_integer("value_dim")),
          sequences(config.get_integer("sequences")), batch(config.get_integer("batch")),
          cells(sequences * config.get_integer("capacity"),
                Cell{0,
                     {},
                     Tokens(layers, Token(heads * key_dim)),
                     Tokens(layers, Token(heads * value_dim))}) {}

    void forward(const Message &message, Answer &) {
        Pass next{message.get_integers("positions"),
                  message.get_integers("sequences"),
                  message.get_integers("exceptions"),
                  message.get_boolean("reserve"),
                  {}};
        long rows = static_cast<long>(next.positions.size());
        check_batch(next, rows);
        check_all("row", next.exceptions, rows);
        check_all("row", message.get_integers("multimodal"), rows);
        pass.reset();
        for (std::size_t place = 0; place < cells.size(); place++)
            if (cells[place].sequences.empty()) next.places.push_back(place);
        if (!next.is_reserving && static_cast<long>(next.places.size()) < rows)
            throw Refusal("cache-full", std::to_string(rows) + " tokens, and room for "
                                            + std::to_string(next.places.size()));
        for (long row = 0; row < rows && !next.is_reserving; row++) {
            cells[next.places[row]].position = next.positions[row];
            cells[next.places[row]].sequences = {next.sequences[row]};
        }
        pass = next;
    }

    void put(const Message &message, Answer &) {
        long layer = get_layer(message);
        Tokens keys = message.get_tokens("keys", heads, key_dim);
        Tokens values = message.get_tokens("values", heads, value_dim);
        std::size_t rows = pass->positions.size();
        if (keys.size() != rows || values.size() != rows)
            throw Refusal("usage", "K or V has not one token for each row of the pass");
        for (std::size_t row = 0; row < rows && !pass->is_reserving; row++) {
            cells[pass->places[row]].keys[layer] = keys[row];
            cells[pass->places[row]].values[layer] = values[row];
        }
    }

    void get(const Message &message, Answer &answer) {
        long layer = get_layer(message);
        Tokens keys, values;
        for (const Cell &cell : cells) {
            keys.push_back(cell.keys[layer]);
            values.push_back(cell.values[layer]);
        }
        std::vector<bool> seen;
        long rows = static_cast<long>(pass->positions.size());
        for (long row = 0; row < rows; row++)
            for (const Cell &cell : cells) seen.push_back(is_visible(row, cell));
        answer.put_tokens("keys", heads, key_dim, keys);
        answer.put_tokens("values", heads, value_dim, values);
        answer.put_mask(rows, static_cast<long>(cells.size()), seen, true);
    }

    void copy_prefix(const Message &message, Answer &) {
        long source = message.get_integer("source"),
             target = message.get_integer("target");
        long length = message.get_integer("length");
        check("sequence", source, sequences);
        check("sequence", target, sequences);
        if (source == target) throw Refusal("usage", "a sequence copied onto itself");
        if (length < 0) throw Refusal("usage", "the length is negative");
        pass.reset();
        leave(target, 0, end_of_all);
        for (Cell &cell : cells)
            if (cell.sequences.count(source) && cell.position < length)
                cell.sequences.insert(target);
    }

    void remove(const Message &message, Answer &) {
        long sequence = message.get_integer("sequence");
        long begin = message.get_integer("begin");
        long end = message.is_null("end") ? end_of_all : message.get_integer("end");
        check("sequence", sequence, sequences);
        if (begin < 0 || begin > end)
            throw Refusal("usage", "begin is negative, or behind the end");
        bool follows = false;
        for (const Cell &cell : cells)
            if (cell.sequences.count(sequence) && cell.position >= end) {
                if (cell.sequences.size() > 1)
                    throw Refusal("shared", "a token that would move is shared");
                follows = true;
            }
        if (follows) throw Refusal("not-supported", "keys cannot be turned here");
        pass.reset();
        leave(sequence, begin, end);
    }

    void can_resume(const Message &message, Answer &answer) {
        check("sequence", message.get_integer("sequence"), sequences);
        if (message.get_integer("position") < 0)
            throw Refusal("usage", "the position is negative");
        answer.put_boolean("result", true);
    }

    void save(const Message &, Answer &answer) { answer.put_saved(cells); }

    void load(const Message &message, Answer &) {
        cells = std::any_cast<const std::vector<Cell> &>(message.get_saved("saved"));
        pass.reset();
    }

  private:
    static constexpr long end_of_all = std::numeric_limits<long>::max();
    long layers, heads, key_dim, value_dim, sequences, batch;
    std::vector<Cell> cells;
    std::optional<Pass> pass;  // the open one

    static void check(const char *what, long number, long count) {
        if (number < 0 || number >= count)
            throw Refusal("usage", what + (" " + std::to_string(number))
                                       + " is not in [0, " + std::to_string(count) + ")");
    }

    static void check_all(const char *what, const std::vector<long> &numbers,
                          long count) {
        for (long number : numbers) check(what, number, count);
    }

    void check_batch(const Pass &next, long rows) const {
        if (next.positions.size() != next.sequences.size())
            throw Refusal("usage", "positions and sequences differ in number");
        if (!rows || rows > batch)
            throw Refusal("usage", "the batch is empty or too large");
        for (long position : next.positions)
            if (position < 0) throw Refusal("usage", "a position is negative");
        check_all("sequence", next.sequences, sequences);
    }

    long get_layer(const Message &message) const {
        if (!pass) throw Refusal("usage", "no pass is open; forward opens one");
        long layer = message.get_integer("layer");
        check("layer", layer, layers);
        return layer;
    }

    bool is_visible(long row, const Cell &cell) const {
        const auto &ahead = pass->exceptions;
        bool looks_ahead = std::find(ahead.begin(), ahead.end(), row) != ahead.end();
        return !pass->is_reserving && cell.sequences.count(pass->sequences[row])
               && (cell.position <= pass->positions[row] || looks_ahead);
    }

    // The sequence leaves its tokens in [begin, end).
    void leave(long sequence, long begin, long end) {
        for (Cell &cell : cells)
            if (begin <= cell.position && cell.position < end)
                cell.sequences.erase(sequence);
    }
};

// --- what is declared ------------------------------------------------------------------

int main() {
    const std::string layer = R"({"refuses": true, "config": {"mask_padding": [1, 4]}})";
    const std::string unified =
        R"({"refuses": true, "config": {"shift": [false], "layers": [1, 2]}})";
    const std::vector<lockstep::Operation<Layer>> rotating = {
        {"update", &Layer::update}, {"state", &Layer::view}, {"view", &Layer::view},
        {"size", &Layer::size},     {"trim", &Layer::trim},  {"clone", &Layer::clone},
        {"free", &Layer::free},
    };
    std::vector<lockstep::Operation<Layer>> kv = rotating;
    kv.insert(kv.end(), {{"snapshot", &Layer::snapshot},
                         {"restore", &Layer::restore},
                         {"close", &Layer::close}});
    lockstep::Driver driver(
        R"({"name": "kit-cpp", "version": "1"})",
        {
            lockstep::make_kind<Layer>("layer", "kv", layer, kv),
            lockstep::make_kind<Layer>("layer", "rotating", layer, rotating),
            lockstep::make_kind<Causal>("unified", "causal", unified,
                                        {{"forward", &Causal::forward},
                                         {"put", &Causal::put},
                                         {"get", &Causal::get},
                                         {"copy_prefix", &Causal::copy_prefix},
                                         {"remove", &Causal::remove},
                                         {"can_resume", &Causal::can_resume},
                                         {"save", &Causal::save},
                                         {"load", &Causal::load}}),
        });
    return driver.run();
}
