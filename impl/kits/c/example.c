/* SPDX-License-Identifier: MIT
 * Copyright (c) 2026 the Lockstep authors
 *
 * An example for the kit in C11: kv and rotating of the layer contract, causal of the
 * unified contract. reference/kv.py, rotating.py and causal.py are what the operations
 * mean. Numbers are stored as float, so float32 is the only dtype. */

#include "lockstep.h"

/* --- memory for K and V ----------------------------------------------------------------
 * Tokens one after the other, and of each its heads: what is appended or copied is one
 * piece. */

struct form {
    int heads, key_dim, value_dim;
};

struct rows {
    float *keys;   /* [room, heads, key_dim] */
    float *values; /* [room, heads, value_dim] */
    int room;      /* tokens */
};

static struct form get_form(void) {
    return (struct form){(int)lockstep_get_integer("heads"),
                         (int)lockstep_get_integer("key_dim"),
                         (int)lockstep_get_integer("value_dim")};
}

static size_t key_size(struct form form) { return (size_t)(form.heads * form.key_dim); }

static size_t value_size(struct form form) {
    return (size_t)(form.heads * form.value_dim);
}

static void reserve_rows(struct rows *rows, struct form form, int tokens) {
    if (tokens <= rows->room) return;
    size_t key = key_size(form), value = value_size(form), count = (size_t)tokens;
    rows->keys = lockstep_grow(rows->keys, count * key + 1, sizeof(float));
    rows->values = lockstep_grow(rows->values, count * value + 1, sizeof(float));
    for (size_t place = (size_t)rows->room * key; place < count * key; place++)
        rows->keys[place] = NAN; /* "poison" */
    for (size_t place = (size_t)rows->room * value; place < count * value; place++)
        rows->values[place] = NAN;
    rows->room = tokens;
}

static void write_rows(struct rows *to, int begin, const float *keys, const float *values,
                       int count, struct form form) {
    size_t key = key_size(form), value = value_size(form);
    if (!count) return;
    reserve_rows(to, form, begin + count);
    memmove(to->keys + (size_t)begin * key, keys, (size_t)count * key * sizeof(float));
    memmove(to->values + (size_t)begin * value, values,
            (size_t)count * value * sizeof(float));
}

static void copy_rows(struct rows *to, int begin, const struct rows *from, int first,
                      int count, struct form form) {
    if (count) /* there may be no memory yet */
        write_rows(to, begin, from->keys + (size_t)first * key_size(form),
                   from->values + (size_t)first * value_size(form), count, form);
}

static void free_rows(struct rows *rows) {
    free(rows->keys);
    free(rows->values);
    *rows = (struct rows){0};
}

static void put_values(const struct rows *rows, struct form form, int begin, int end) {
    float *data = rows->values + (size_t)begin * value_size(form);
    lockstep_put_tokens("values", form.heads, form.value_dim,
                        (struct lockstep_tokens){end - begin, data});
}

static void put_keys(const struct rows *rows, struct form form, int begin, int end) {
    float *data = rows->keys + (size_t)begin * key_size(form);
    lockstep_put_tokens("keys", form.heads, form.key_dim,
                        (struct lockstep_tokens){end - begin, data});
}

/* --- kv and rotating: one sequence -----------------------------------------------------
 * The token at position p is row p - start. With a window, the last `window` tokens stay
 * after each update. Snapshots are copies. */

struct tokens {
    struct form form;
    int begin, end;
    struct rows rows;
};

struct layer {
    struct form form;
    int window; /* 0: none */
    int start, offset;
    bool is_additive;
    struct rows rows;
    int scheduled, from; /* how many captures, and the offset when they were scheduled */
    long *offsets;
    struct lockstep_snapshot *captures; /* without content: not captured */
};

static void *open_layer(void) {
    struct layer opened = {.form = get_form()};
    opened.window = lockstep_is_null("window") ? 0 : (int)lockstep_get_integer("window");
    opened.is_additive = !strcmp(lockstep_get_text("mask_form"), "additive");
    struct layer *layer = lockstep_allocate(1, sizeof *layer);
    *layer = opened;
    return layer;
}

static void drop_tokens(void *content) {
    struct tokens *tokens = content;
    free_rows(&tokens->rows);
    free(tokens);
}

static void clear_captures(struct layer *layer, bool drop) {
    for (int place = 0; drop && place < layer->scheduled; place++)
        if (layer->captures[place].content) drop_tokens(layer->captures[place].content);
    free(layer->offsets);
    free(layer->captures);
    layer->scheduled = 0;
    layer->offsets = NULL;
    layer->captures = NULL;
}

static void drop_layer(void *cache) {
    struct layer *layer = cache;
    clear_captures(layer, true);
    free_rows(&layer->rows);
    free(layer);
}

/* Those at [begin, end), of which the first is row `row`. */
static struct lockstep_snapshot take_tokens(const struct rows *rows, int row, int begin,
                                            int end, struct form form) {
    if (begin >= end) return (struct lockstep_snapshot){0};
    struct tokens *tokens = lockstep_allocate(1, sizeof *tokens);
    *tokens = (struct tokens){form, begin, end, {0}};
    copy_rows(&tokens->rows, 0, rows, row, end - begin, form);
    return (struct lockstep_snapshot){begin, end, tokens, drop_tokens};
}

/* An update has moved the cache from `before`: takes what is due since. */
static void capture(struct layer *layer, int before) {
    for (int place = 0; place < layer->scheduled; place++) {
        int end = (int)layer->offsets[place];
        int begin = place ? (int)layer->offsets[place - 1] : layer->from;
        if (!layer->captures[place].content && before < end && end <= layer->offset)
            layer->captures[place] =
                take_tokens(&layer->rows, begin, begin, end, layer->form);
    }
}

/* Rows of queries, columns of tokens; rows beyond the queries see nothing. */
static void put_mask(const struct layer *layer, int first, int rows) {
    int columns = layer->offset - layer->start;
    bool *seen = lockstep_borrow((size_t)(rows * columns), sizeof *seen);
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++) {
            int query = first + row, position = layer->start + column;
            seen[row * columns + column] =
                query < layer->offset && position <= query
                && (!layer->window || position > query - layer->window);
        }
    lockstep_put_mask(rows, columns, seen, layer->is_additive);
}

static void put_content(const struct layer *layer) {
    put_keys(&layer->rows, layer->form, 0, layer->offset - layer->start);
    put_values(&layer->rows, layer->form, 0, layer->offset - layer->start);
}

static void update(void *cache) {
    struct layer *layer = cache;
    struct form form = layer->form;
    struct lockstep_tokens keys = lockstep_get_tokens("keys", form.heads, form.key_dim);
    struct lockstep_tokens values =
        lockstep_get_tokens("values", form.heads, form.value_dim);
    int rows = (int)lockstep_get_integer("rows"), first = layer->offset;
    int stored = first - layer->start, needed = stored + keys.count;
    if (keys.count != values.count)
        lockstep_refuse("usage", "K of %d tokens, V of %d", keys.count, values.count);
    if (rows < keys.count)
        lockstep_refuse("usage", "%d rows for %d tokens", rows, keys.count);
    if (needed > layer->rows.room) reserve_rows(&layer->rows, form, 2 * needed);
    write_rows(&layer->rows, stored, keys.data, values.data, keys.count, form);
    layer->offset += keys.count;
    capture(layer, first);
    lockstep_put_integer("offset", layer->offset);
    put_content(layer);
    put_mask(layer, first, rows);
    int more = layer->window ? layer->offset - layer->start - layer->window : 0;
    if (more > 0) {
        copy_rows(&layer->rows, 0, &layer->rows, more, layer->window, form);
        layer->start += more;
    }
}

static void view(void *cache) {
    const struct layer *layer = cache;
    if (layer->offset) {
        put_content(layer);
        return;
    }
    lockstep_put_null("keys");
    lockstep_put_null("values");
}

static void size(void *cache) {
    const struct layer *layer = cache;
    lockstep_put_integer("size", layer->offset - layer->start);
}

static void trim(void *cache) {
    struct layer *layer = cache;
    long count = lockstep_get_integer("count");
    if (count < 0) lockstep_refuse("usage", "trim: count %ld is negative", count);
    if (count > layer->offset) count = layer->offset;
    if (layer->start) count = 0; /* an earlier window is lost */
    layer->offset -= (int)count;
    lockstep_put_integer("trimmed", count);
    lockstep_put_integer("offset", layer->offset);
}

static void clone_layer(void *cache) {
    const struct layer *layer = cache;
    struct layer *copy = lockstep_allocate(1, sizeof *copy);
    *copy = *layer;
    copy->rows = (struct rows){0};
    copy->scheduled = 0;
    copy->offsets = NULL;
    copy->captures = NULL;
    copy_rows(&copy->rows, 0, &layer->rows, 0, layer->offset - layer->start, layer->form);
    lockstep_put_cache(copy);
}

static void free_layer(void *cache) {
    struct layer *layer = cache;
    clear_captures(layer, true);
    free_rows(&layer->rows);
    layer->start = layer->offset = 0;
    lockstep_put_integer("offset", 0);
}

/* --- kv alone: snapshots and captures ------------------------------------------------*/

static void snapshot(void *cache) {
    const struct layer *layer = cache;
    long begin = lockstep_get_integer("begin");
    int first = begin < 0 ? 0 : begin > layer->offset ? layer->offset : (int)begin;
    lockstep_put_snapshot(
        "snapshot", take_tokens(&layer->rows, first, first, layer->offset, layer->form));
}

static void restore(void *cache) {
    struct layer *layer = cache;
    const struct lockstep_snapshot *snapshot = lockstep_get_snapshot("snapshot");
    long target = lockstep_get_integer("target");
    bool ok = 0 <= target && target <= layer->offset;
    if (snapshot) {
        int begin = snapshot->begin;
        const struct tokens *tokens = snapshot->content;
        ok = 0 <= target && target <= snapshot->end && layer->offset >= begin;
        if (ok && target > begin)
            copy_rows(&layer->rows, begin, &tokens->rows, 0, (int)target - begin,
                      layer->form);
    }
    if (ok) layer->offset = (int)target;
    lockstep_put_boolean("ok", ok);
    lockstep_put_integer("offset", layer->offset);
}

static void split(void *cache) {
    const struct layer *layer = cache;
    const struct lockstep_snapshot *whole = lockstep_get_snapshot("snapshot");
    const struct tokens *tokens = whole->content;
    long at = lockstep_get_integer("at");
    int begin = whole->begin, end = whole->end;
    int cut = at < begin ? begin : at > end ? end : (int)at;
    struct lockstep_snapshot parent =
        take_tokens(&tokens->rows, 0, begin, cut, layer->form);
    struct lockstep_snapshot child =
        take_tokens(&tokens->rows, cut - begin, cut, end, layer->form);
    lockstep_use_snapshot("snapshot");
    lockstep_put_snapshot("parent", parent);
    lockstep_put_snapshot("child", child);
}

static void merge(void *cache) {
    const struct layer *layer = cache;
    const struct lockstep_snapshot *parent = lockstep_get_snapshot("parent");
    const struct lockstep_snapshot *child = lockstep_get_snapshot("child");
    struct lockstep_snapshot merged = {0};
    if (parent && child) {
        const struct tokens *before = parent->content, *after = child->content;
        if (parent->end != child->begin)
            lockstep_refuse("usage", "merge: [%d, %d) and [%d, %d) are not adjacent",
                            parent->begin, parent->end, child->begin, child->end);
        merged = take_tokens(&before->rows, 0, parent->begin, parent->end, layer->form);
        struct tokens *both = merged.content;
        copy_rows(&both->rows, parent->end - parent->begin, &after->rows, 0,
                  child->end - child->begin, layer->form);
        both->end = merged.end = child->end;
    }
    lockstep_use_snapshot("parent");
    lockstep_use_snapshot("child");
    lockstep_put_snapshot("snapshot", merged);
}

static void close_snapshot(void *cache) {
    (void)cache;
    lockstep_use_snapshot("snapshot");
}

static void prepare(void *cache) {
    struct layer *layer = cache;
    struct lockstep_integers offsets = lockstep_get_integers("offsets");
    if (layer->scheduled)
        lockstep_refuse("usage", "prepare: earlier captures were not taken");
    for (int place = 0; place < offsets.count; place++)
        if (offsets.items[place] < layer->offset
            || (place && offsets.items[place - 1] >= offsets.items[place]))
            lockstep_refuse("usage", "prepare: offset %ld is behind the one before",
                            offsets.items[place]);
    size_t count = (size_t)offsets.count;
    clear_captures(layer, false);
    layer->scheduled = offsets.count;
    layer->from = layer->offset;
    layer->captures = lockstep_allocate(count, sizeof *layer->captures);
    layer->offsets = lockstep_allocate(count, sizeof *layer->offsets);
    memcpy(layer->offsets, offsets.items, count * sizeof *layer->offsets);
}

static void take(void *cache) {
    struct layer *layer = cache;
    lockstep_put_snapshots("snapshots", layer->scheduled, layer->captures);
    clear_captures(layer, false);
}

/* --- causal: many sequences in one pool of cells ---------------------------------------
 * A cell holds one token: its position, and the sequences that it belongs to, as bits; a
 * cell without a bit is free. `rows` is the memory of each layer, by cells. */

struct cell {
    long position;
    uint64_t owners;
};

struct content {
    struct form form;
    int layers, cell_count;
    struct cell *cells;
    struct rows *rows;
};

struct causal {
    struct content content;
    int sequences, batch;
    bool can_shift;
    int base_count;
    long *bases; /* of the rotation, taken in turn by the layers */
    /* The open pass. row_count 0: none is open. */
    int row_count;
    bool is_reserving;
    long *positions, *owners; /* of each row */
    bool *looks_ahead;
    int *places; /* the cell of each row */
};

static void make_content(struct content *content, struct form form, int layers,
                         int cell_count) {
    *content = (struct content){form, layers, cell_count, NULL, NULL};
    content->cells = lockstep_allocate((size_t)cell_count, sizeof *content->cells);
    content->rows = lockstep_allocate((size_t)layers, sizeof *content->rows);
    for (int layer = 0; layer < layers; layer++)
        reserve_rows(&content->rows[layer], form, cell_count);
}

static void copy_content(struct content *to, const struct content *from) {
    memcpy(to->cells, from->cells, (size_t)from->cell_count * sizeof *to->cells);
    for (int layer = 0; layer < from->layers; layer++)
        copy_rows(&to->rows[layer], 0, &from->rows[layer], 0, from->cell_count,
                  from->form);
}

static void free_content(struct content *content) {
    for (int layer = 0; layer < content->layers; layer++)
        free_rows(&content->rows[layer]);
    free(content->rows);
    free(content->cells);
}

static void *open_causal(void) {
    struct causal opened = {.sequences = (int)lockstep_get_integer("sequences"),
                            .batch = (int)lockstep_get_integer("batch"),
                            .can_shift = lockstep_get_boolean("shift")};
    struct lockstep_integers bases = lockstep_get_integers("rope_bases");
    struct form form = get_form();
    int layers = (int)lockstep_get_integer("layers");
    int room = opened.sequences * (int)lockstep_get_integer("capacity");
    struct causal *causal = lockstep_allocate(1, sizeof *causal);
    *causal = opened;
    causal->base_count = bases.count;
    causal->bases = lockstep_allocate((size_t)bases.count, sizeof *causal->bases);
    memcpy(causal->bases, bases.items, (size_t)bases.count * sizeof *causal->bases);
    make_content(&causal->content, form, layers, room);
    size_t batch = (size_t)causal->batch;
    causal->positions = lockstep_allocate(batch, sizeof *causal->positions);
    causal->owners = lockstep_allocate(batch, sizeof *causal->owners);
    causal->looks_ahead = lockstep_allocate(batch, sizeof *causal->looks_ahead);
    causal->places = lockstep_allocate(batch, sizeof *causal->places);
    return causal;
}

static void drop_causal(void *cache) {
    struct causal *causal = cache;
    free_content(&causal->content);
    free(causal->bases);
    free(causal->positions);
    free(causal->owners);
    free(causal->looks_ahead);
    free(causal->places);
    free(causal);
}

static bool holds(const struct cell *cell, long sequence) {
    return cell->owners >> sequence & 1;
}

static void close_pass(struct causal *causal) { causal->row_count = 0; }

static void check_sequence(const struct causal *causal, long sequence) {
    if (sequence < 0 || sequence >= causal->sequences)
        lockstep_refuse("usage", "sequence %ld is not in [0, %d)", sequence,
                        causal->sequences);
}

static void check_rows(struct lockstep_integers named, int rows) {
    for (int place = 0; place < named.count; place++)
        if (named.items[place] < 0 || named.items[place] >= rows)
            lockstep_refuse("usage", "row %ld is not in [0, %d)", named.items[place],
                            rows);
}

static void check_batch(const struct causal *causal, struct lockstep_integers positions,
                        struct lockstep_integers owners) {
    int rows = positions.count;
    if (rows != owners.count)
        lockstep_refuse("usage", "%d positions, but %d sequences", rows, owners.count);
    if (!rows || rows > causal->batch)
        lockstep_refuse("usage", "a batch of %d rows; expected 1 to %d", rows,
                        causal->batch);
    for (int row = 0; row < rows; row++) {
        if (positions.items[row] < 0)
            lockstep_refuse("usage", "position %ld is negative", positions.items[row]);
        check_sequence(causal, owners.items[row]);
    }
}

/* The rows go to the lowest free cells. */
static void add_tokens(struct causal *causal, struct lockstep_integers positions,
                       struct lockstep_integers owners) {
    struct content *content = &causal->content;
    int rows = positions.count, free_cells = 0;
    for (int cell = 0; cell < content->cell_count; cell++)
        free_cells += !content->cells[cell].owners;
    if (free_cells < rows)
        lockstep_refuse("cache-full", "%d tokens, and room for %d", rows, free_cells);
    for (int row = 0, cell = 0; row < rows; cell++)
        if (!content->cells[cell].owners) {
            content->cells[cell].position = positions.items[row];
            content->cells[cell].owners = UINT64_C(1) << owners.items[row];
            causal->places[row++] = cell;
        }
}

static void forward(void *cache) {
    struct causal *causal = cache;
    struct lockstep_integers positions = lockstep_get_integers("positions");
    struct lockstep_integers owners = lockstep_get_integers("sequences");
    struct lockstep_integers exceptions = lockstep_get_integers("exceptions");
    bool is_reserving = lockstep_get_boolean("reserve");
    check_batch(causal, positions, owners);
    check_rows(exceptions, positions.count);
    check_rows(lockstep_get_integers("multimodal"), positions.count);
    close_pass(causal);
    if (!is_reserving) add_tokens(causal, positions, owners);
    causal->is_reserving = is_reserving;
    causal->row_count = positions.count;
    for (int row = 0; row < positions.count; row++) {
        causal->positions[row] = positions.items[row];
        causal->owners[row] = owners.items[row];
        causal->looks_ahead[row] = false;
    }
    for (int place = 0; place < exceptions.count; place++)
        causal->looks_ahead[exceptions.items[place]] = true;
}

static struct rows *get_layer(const struct causal *causal) {
    long layer = lockstep_get_integer("layer");
    if (!causal->row_count)
        lockstep_refuse("usage", "no pass is open; forward opens one");
    if (layer < 0 || layer >= causal->content.layers)
        lockstep_refuse("usage", "layer %ld is not in [0, %d)", layer,
                        causal->content.layers);
    return &causal->content.rows[layer];
}

static void put(void *cache) {
    struct causal *causal = cache;
    struct form form = causal->content.form;
    struct rows *layer = get_layer(causal);
    struct lockstep_tokens keys = lockstep_get_tokens("keys", form.heads, form.key_dim);
    struct lockstep_tokens values =
        lockstep_get_tokens("values", form.heads, form.value_dim);
    if (keys.count != causal->row_count || values.count != causal->row_count)
        lockstep_refuse("usage", "K of %d tokens, V of %d; the pass has %d", keys.count,
                        values.count, causal->row_count);
    for (int row = 0; row < causal->row_count && !causal->is_reserving; row++)
        write_rows(layer, causal->places[row], keys.data + (size_t)row * key_size(form),
                   values.data + (size_t)row * value_size(form), 1, form);
}

static bool is_visible(const struct causal *causal, int row, const struct cell *cell) {
    return !causal->is_reserving && holds(cell, causal->owners[row])
           && (cell->position <= causal->positions[row] || causal->looks_ahead[row]);
}

static void get(void *cache) {
    const struct causal *causal = cache;
    struct form form = causal->content.form;
    const struct rows *layer = get_layer(causal);
    int rows = causal->row_count, columns = causal->content.cell_count;
    bool *seen = lockstep_borrow((size_t)(rows * columns), sizeof *seen);
    for (int row = 0; row < rows; row++)
        for (int cell = 0; cell < columns; cell++)
            seen[row * columns + cell] =
                is_visible(causal, row, &causal->content.cells[cell]);
    put_keys(layer, form, 0, columns);
    put_values(layer, form, 0, columns);
    lockstep_put_mask(rows, columns, seen, true);
}

/* The sequence leaves its tokens in [begin, end). */
static void leave(struct content *content, long sequence, long begin, long end) {
    for (int cell = 0; cell < content->cell_count; cell++) {
        struct cell *token = &content->cells[cell];
        if (holds(token, sequence) && begin <= token->position && token->position < end)
            token->owners &= ~(UINT64_C(1) << sequence);
    }
}

static void copy_prefix(void *cache) {
    struct causal *causal = cache;
    struct content *content = &causal->content;
    long source = lockstep_get_integer("source"), target = lockstep_get_integer("target");
    long length = lockstep_get_integer("length");
    check_sequence(causal, source);
    check_sequence(causal, target);
    if (source == target)
        lockstep_refuse("usage", "sequence %ld cannot be copied onto itself", source);
    if (length < 0) lockstep_refuse("usage", "length %ld is negative", length);
    close_pass(causal);
    leave(content, target, 0, INT64_MAX);
    for (int cell = 0; cell < content->cell_count; cell++)
        if (holds(&content->cells[cell], source)
            && content->cells[cell].position < length)
            content->cells[cell].owners |= UINT64_C(1) << target;
}

/* Turns the keys of one cell by a distance: the pairs are (x[i], x[i + dim / 2]). */
static void turn(struct causal *causal, int cell, long distance) {
    struct form form = causal->content.form;
    int half = form.key_dim / 2;
    for (int layer = 0; layer < causal->content.layers; layer++) {
        double base = (double)causal->bases[layer % causal->base_count];
        float *key = causal->content.rows[layer].keys + (size_t)cell * key_size(form);
        for (int head = 0; head < form.heads; head++, key += form.key_dim)
            for (int pair = 0; pair < half; pair++) {
                double angle = (double)distance * pow(base, -2.0 * pair / form.key_dim);
                double x = key[pair], y = key[pair + half];
                key[pair] = (float)(x * cos(angle) - y * sin(angle));
                key[pair + half] = (float)(x * sin(angle) + y * cos(angle));
            }
    }
}

/* What follows a gap has to move up. */
static void check_move(const struct causal *causal, long sequence, long end) {
    bool follows = false, is_shared = false;
    for (int cell = 0; cell < causal->content.cell_count; cell++) {
        const struct cell *token = &causal->content.cells[cell];
        if (holds(token, sequence) && token->position >= end) {
            follows = true;
            is_shared |= token->owners != UINT64_C(1) << sequence;
        }
    }
    if (is_shared)
        lockstep_refuse("shared", "sequence %ld shares what would move", sequence);
    if (follows && !causal->can_shift)
        lockstep_refuse("not-supported", "keys cannot turn");
}

static void remove_tokens(void *cache) {
    struct causal *causal = cache;
    struct content *content = &causal->content;
    long sequence = lockstep_get_integer("sequence"),
         begin = lockstep_get_integer("begin");
    long end = lockstep_is_null("end") ? INT64_MAX : lockstep_get_integer("end");
    check_sequence(causal, sequence);
    if (begin < 0 || begin > end)
        lockstep_refuse("usage", "begin %ld is negative, or behind the end", begin);
    check_move(causal, sequence, end);
    close_pass(causal);
    leave(content, sequence, begin, end);
    for (int cell = 0; cell < content->cell_count && begin < end; cell++) {
        struct cell *token = &content->cells[cell];
        if (holds(token, sequence) && token->position >= end) {
            token->position += begin - end;
            turn(causal, cell, begin - end);
        }
    }
}

static void can_resume(void *cache) {
    long position = lockstep_get_integer("position");
    check_sequence(cache, lockstep_get_integer("sequence"));
    if (position < 0) lockstep_refuse("usage", "position %ld is negative", position);
    lockstep_put_boolean("result", true);
}

static void drop_content(void *saved) {
    free_content(saved);
    free(saved);
}

static void save(void *cache) {
    const struct content *content = &((struct causal *)cache)->content;
    struct content *saved = lockstep_allocate(1, sizeof *saved);
    make_content(saved, content->form, content->layers, content->cell_count);
    copy_content(saved, content);
    lockstep_put_saved(saved, drop_content);
}

static void load(void *cache) {
    struct causal *causal = cache;
    struct content *content = &causal->content;
    const struct content *saved = lockstep_get_saved("saved");
    if (memcmp(&saved->form, &content->form, sizeof saved->form) != 0 ||
        saved->layers != content->layers || saved->cell_count != content->cell_count)
        lockstep_refuse("usage", "load: a cache of other sizes has saved this");
    copy_content(content, saved);
    close_pass(causal);
}

/* --- what is declared ----------------------------------------------------------------*/

static const struct lockstep_operation KV[] = {
    {"update", update},   {"state", view},        {"view", view},
    {"size", size},       {"trim", trim},         {"clone", clone_layer},
    {"free", free_layer}, {"snapshot", snapshot}, {"restore", restore},
    {"split", split},     {"merge", merge},       {"close", close_snapshot},
    {"prepare", prepare}, {"take", take},         {0},
};

static const struct lockstep_operation ROTATING[] = {
    {"update", update}, {"state", view},        {"view", view},       {"size", size},
    {"trim", trim},     {"clone", clone_layer}, {"free", free_layer}, {0},
};

static const struct lockstep_operation CAUSAL[] = {
    {"forward", forward},
    {"put", put},
    {"get", get},
    {"copy_prefix", copy_prefix},
    {"remove", remove_tokens},
    {"can_resume", can_resume},
    {"save", save},
    {"load", load},
    {0},
};

static const char LAYER_CONFIG[] =
    "{\"refuses\": true, \"config\": {\"mask_padding\": [1, 4],"
    " \"mask_form\": [\"any\", \"additive\"]}}";

static const char CAUSAL_CONFIG[] =
    "{\"refuses\": true, \"config\": {\"layers\": [1, 2, 1, 3]}}";

static const struct lockstep_kind KINDS[] = {
    {"layer", "kv", LAYER_CONFIG, open_layer, drop_layer, KV},
    {"layer", "rotating", LAYER_CONFIG, open_layer, drop_layer, ROTATING},
    {"unified", "causal", CAUSAL_CONFIG, open_causal, drop_causal, CAUSAL},
    {0},
};

int main(void) {
    const struct lockstep_driver driver = {
        "{\"name\": \"kit-c\", \"version\": \"1\", \"poison\": true}",
        KINDS,
    };
    return lockstep_run(&driver);
}
