/* A complete driver for Lockstep in C11: one line of JSON in, one line out.
 *
 * Kinds: kv of the layer contract, causal of the unified contract, both with all of their
 * operations. harness/exec/README.md is the protocol, reference/kv.py and
 * reference/causal.py are what the operations mean. Numbers are stored as float, so
 * float32 is the only dtype that is declared. */

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void die(const char *why) {
    fprintf(stderr, "lockstep-c: %s\n", why);
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die("out of memory");
    return memory;
}

static void *grow(void *memory, size_t count, size_t size) {
    memory = realloc(memory, count * size);
    if (!memory) die("out of memory");
    return memory;
}

/* --- reading JSON ------------------------------------------------------------------------
 * A message becomes a tree of values. Their memory, and the text that they point into, is
 * used again for the next message. */

enum type { NOTHING, BOOLEAN, NUMBER, TEXT, LIST, OBJECT };

struct value {
    enum type type;
    double number;  /* of a NUMBER; 1 for true */
    char *text;     /* of a TEXT */
    char *name;     /* of what is in an OBJECT */
    uint32_t first; /* of a LIST or OBJECT: its first item, 0 if it is empty */
    uint32_t next;  /* the next one in the same list */
    uint32_t count;
};

static struct value *values; /* values[0] is no value */
static uint32_t value_count, value_room;
static char *at; /* the next character of the message */

static void skip_blanks(void) {
    while (isspace((unsigned char)*at)) at++;
}

static void expect(char wanted) {
    skip_blanks();
    if (*at++ != wanted) die("a message is no JSON");
}

static uint32_t make_value(enum type type) {
    if (value_count == value_room) {
        value_room = value_room ? 2 * value_room : 1024;
        values = grow(values, value_room, sizeof *values);
    }
    values[value_count] = (struct value){.type = type};
    return value_count++;
}

/* The harness writes ASCII alone, and no name that this driver looks at is escaped. */
static char *read_text(void) {
    expect('"');
    char *text = at;
    while (*at && *at != '"') at += *at == '\\' && at[1] ? 2 : 1;
    if (!*at) die("a text does not end");
    *at++ = 0;
    return text;
}

static bool accept_word(const char *word) {
    size_t length = strlen(word);
    if (strncmp(at, word, length)) return false;
    at += length;
    return true;
}

static uint32_t read_value(void);

static uint32_t read_items(enum type type, char end) {
    uint32_t list = make_value(type), last = 0;
    at++;
    for (skip_blanks(); *at != end; skip_blanks()) {
        if (values[list].count) expect(',');
        char *name = NULL;
        if (type == OBJECT) {
            skip_blanks();
            name = read_text();
            expect(':');
        }
        uint32_t item = read_value();
        values[item].name = name;
        if (last) values[last].next = item;
        else values[list].first = item;
        last = item;
        values[list].count++;
    }
    at++;
    return list;
}

static uint32_t read_value(void) {
    skip_blanks();
    uint32_t value;
    if (*at == '[') return read_items(LIST, ']');
    if (*at == '{') return read_items(OBJECT, '}');
    if (*at == '"') {
        value = make_value(TEXT);
        values[value].text = read_text();
    } else if (accept_word("null")) {
        value = make_value(NOTHING);
    } else if (accept_word("true") || accept_word("false")) {
        value = make_value(BOOLEAN);
        values[value].number = at[-2] == 'u'; /* tr-u-e, fal-s-e */
    } else {
        char *end;
        value = make_value(NUMBER);
        values[value].number = strtod(at, &end);
        if (end == at) die("a message is no JSON");
        at = end;
    }
    return value;
}

static const struct value *get_field(const struct value *object, const char *name) {
    for (uint32_t item = object->first; item; item = values[item].next)
        if (!strcmp(values[item].name, name)) return &values[item];
    fprintf(stderr, "lockstep-c: a message has no %s\n", name);
    exit(1);
}

static long get_number(const struct value *object, const char *name) {
    return (long)get_field(object, name)->number;
}

static bool is_null(const struct value *object, const char *name) {
    return get_field(object, name)->type == NOTHING;
}

/* A list of whole numbers, to be freed. */
struct numbers {
    long *items;
    int count;
};

static struct numbers get_numbers(const struct value *object, const char *name) {
    const struct value *list = get_field(object, name);
    struct numbers numbers = {allocate(list->count, sizeof(long)), 0};
    for (uint32_t item = list->first; item; item = values[item].next)
        numbers.items[numbers.count++] = (long)values[item].number;
    return numbers;
}

/* K or V of a message, [1, heads, tokens, dim]. */
struct array {
    int batch, heads, tokens, dim;
    const struct value *data;
};

static struct array get_array(const struct value *object, const char *name) {
    const struct value *array = get_field(object, name);
    const struct value *shape = get_field(array, "shape");
    if (shape->count != 4) die("an array has not four axes");
    int sizes[4], axis = 0;
    for (uint32_t item = shape->first; item; item = values[item].next)
        sizes[axis++] = (int)values[item].number;
    return (struct array){sizes[0], sizes[1], sizes[2], sizes[3], get_field(array, "data")};
}

/* --- writing JSON ------------------------------------------------------------------------
 * The answer to the message grows in one buffer, and goes out at once. */

static char *answer;
static size_t answer_length, answer_room;
static size_t answer_begin; /* behind {"id":… */

static void reserve_answer(size_t more) {
    if (answer_length + more < answer_room) return;
    answer_room = 2 * (answer_length + more);
    answer = grow(answer, answer_room, 1);
}

static void add(const char *format, ...) {
    va_list arguments;
    reserve_answer(256);
    va_start(arguments, format);
    int length = vsnprintf(answer + answer_length, 256, format, arguments);
    va_end(arguments);
    answer_length += (size_t)(length < 255 ? length : 255);
}

static void add_text(const char *text) {
    size_t length = strlen(text);
    reserve_answer(length);
    memcpy(answer + answer_length, text, length);
    answer_length += length;
}

/* The operation is refused: nothing else is answered. */
static void refuse(const char *error, const char *format, ...) {
    char message[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    answer_length = answer_begin;
    add(",\"error\":\"%s\",\"message\":\"%s\"", error, message);
}

/* JSON has no NaN: null stands for it. */
static void add_number(float number) {
    reserve_answer(32);
    char *end = answer + answer_length;
    int length = isnan(number) ? sprintf(end, "null,") : sprintf(end, "%.9g,", number);
    answer_length += (size_t)length;
}

static void begin_array(const char *name, int heads, int tokens, int dim) {
    add(",\"%s\":{\"shape\":[1,%d,%d,%d],\"data\":[", name, heads, tokens, dim);
}

static void end_array(void) {
    if (answer[answer_length - 1] == ',') answer_length--;
    add("]}");
}

/* --- memory for K and V ------------------------------------------------------------------
 * Tokens one after the other, and of each its heads: what is appended or copied is one
 * piece. Messages have heads first. */

struct form {
    int heads, key_dim, value_dim;
};

struct rows {
    float *keys;   /* [tokens, heads, key_dim] */
    float *values; /* [tokens, heads, value_dim] */
    int room;      /* tokens */
};

static void fill_with_nan(float *numbers, size_t count) {
    for (size_t place = 0; place < count; place++) numbers[place] = NAN;
}

static void reserve_rows(struct rows *rows, struct form form, int tokens) {
    if (tokens <= rows->room) return;
    size_t old = (size_t)rows->room, more = (size_t)tokens - old;
    size_t key = (size_t)(form.heads * form.key_dim);
    size_t value = (size_t)(form.heads * form.value_dim);
    rows->keys = grow(rows->keys, (size_t)tokens * key + 1, sizeof(float));
    rows->values = grow(rows->values, (size_t)tokens * value + 1, sizeof(float));
    fill_with_nan(rows->keys + old * key, more * key);
    fill_with_nan(rows->values + old * value, more * value);
    rows->room = tokens;
}

static void copy_rows(struct rows *to, int begin, const struct rows *from, int first,
                      int count, struct form form) {
    size_t key = (size_t)(form.heads * form.key_dim);
    size_t value = (size_t)(form.heads * form.value_dim);
    if (!count) return;
    reserve_rows(to, form, begin + count);
    memcpy(to->keys + (size_t)begin * key, from->keys + (size_t)first * key,
           (size_t)count * key * sizeof(float));
    memcpy(to->values + (size_t)begin * value, from->values + (size_t)first * value,
           (size_t)count * value * sizeof(float));
}

static void free_rows(struct rows *rows) {
    free(rows->keys);
    free(rows->values);
    *rows = (struct rows){0};
}

/* Token number t of the array goes to row places[t], or begin + t without places. */
static void store(float *numbers, struct array array, const int *places, int begin) {
    uint32_t item = array.data->first;
    for (int head = 0; head < array.heads; head++)
        for (int token = 0; token < array.tokens; token++) {
            int row = places ? places[token] : begin + token;
            float *to = numbers + ((size_t)row * (size_t)array.heads + (size_t)head)
                                * (size_t)array.dim;
            for (int place = 0; place < array.dim; place++, item = values[item].next)
                to[place] = (float)values[item].number;
        }
}

/* Rows [begin, end) as an array of the answer. */
static void add_array(const char *name, const float *numbers, int heads, int dim,
                      int begin, int end) {
    begin_array(name, heads, end - begin, dim);
    for (int head = 0; head < heads; head++)
        for (int row = begin; row < end; row++)
            for (int place = 0; place < dim; place++)
                add_number(numbers[((size_t)row * (size_t)heads + (size_t)head)
                                   * (size_t)dim + (size_t)place]);
    end_array();
}

static void add_rows(const struct rows *rows, struct form form, int begin, int end) {
    add_array("keys", rows->keys, form.heads, form.key_dim, begin, end);
    add_array("values", rows->values, form.heads, form.value_dim, begin, end);
}

/* --- what is numbered --------------------------------------------------------------------
 * Caches, snapshots and saved contents go over the wire as numbers. */

struct table {
    void **items; /* NULL where a number is free */
    int count;
};

static struct table caches, snapshots, saves;

static int put_item(struct table *table, void *item) {
    int number = 0;
    while (number < table->count && table->items[number]) number++;
    if (number == table->count)
        table->items = grow(table->items, (size_t)++table->count, sizeof(void *));
    table->items[number] = item;
    return number;
}

static void *get_item(struct table *table, long number) {
    if (number < 0 || number >= table->count || !table->items[number])
        die("a message names something that is not there");
    return table->items[number];
}

struct cache {
    bool is_causal;
    struct form form;
    struct kv *kv;
    struct causal *causal;
};

/* --- kv: one sequence, everything stays --------------------------------------------------
 * The token at position p is row p of the memory. Snapshots are copies. */

struct snapshot {
    int begin, end;
    struct form form;
    struct rows rows;
};

struct kv {
    int offset;
    bool is_additive;
    struct rows rows;
    struct numbers scheduled; /* the offsets that are to be captured */
    long start;               /* where the cache stood when they were scheduled */
    int *captured;            /* the number of each one's snapshot, -1 if it has none */
};

static int make_snapshot(const struct rows *rows, int row, struct form form, int begin,
                         int end) {
    struct snapshot *snapshot = allocate(1, sizeof *snapshot);
    *snapshot = (struct snapshot){begin, end, form, {0}};
    copy_rows(&snapshot->rows, 0, rows, row, end - begin, form);
    return put_item(&snapshots, snapshot);
}

static void drop_snapshot(long number) {
    struct snapshot *snapshot = get_item(&snapshots, number);
    free_rows(&snapshot->rows);
    free(snapshot);
    snapshots.items[number] = NULL;
}

static void add_snapshot(const char *name, int number) {
    if (number < 0) {
        add("\"%s\":null", name);
        return;
    }
    struct snapshot *snapshot = get_item(&snapshots, number);
    add("\"%s\":{\"number\":%d,\"begin\":%d,\"end\":%d}", name, number, snapshot->begin,
        snapshot->end);
}

static void clear_schedule(struct kv *kv, bool drop) {
    for (int place = 0; drop && place < kv->scheduled.count; place++)
        if (kv->captured[place] >= 0) drop_snapshot(kv->captured[place]);
    free(kv->scheduled.items);
    free(kv->captured);
    kv->scheduled = (struct numbers){0};
    kv->captured = NULL;
}

/* A write has moved the cache from one offset to another: takes what is due in between. */
static void capture(struct cache *cache, int before, int after) {
    struct kv *kv = cache->kv;
    for (int place = 0; place < kv->scheduled.count; place++) {
        long end = kv->scheduled.items[place];
        long begin = place ? kv->scheduled.items[place - 1] : kv->start;
        if (kv->captured[place] < 0 && before < end && end <= after && begin < end)
            kv->captured[place] =
                make_snapshot(&kv->rows, (int)begin, cache->form, (int)begin, (int)end);
    }
}

static void add_offset(const struct kv *kv) { add(",\"offset\":%d", kv->offset); }

/* Rows of queries, columns of tokens; rows beyond the tokens are padding, and see nothing. */
static void add_kv_mask(const struct kv *kv, int length, int rows) {
    int first = kv->offset - length; /* the position of the first query */
    const char *seen = kv->is_additive ? "0," : "1,";
    const char *hidden = kv->is_additive ? "-1e999," : "0,";
    add(",\"mask\":{\"shape\":[%d,%d],\"data\":[", rows, kv->offset);
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < kv->offset; column++)
            add_text(row < length && column <= first + row ? seen : hidden);
    end_array();
}

static bool has_form(struct array array, int heads, int rows, int dim, const char *name) {
    if (array.batch == 1 && array.heads == heads && array.tokens == rows
        && array.dim == dim)
        return true;
    refuse("usage", "%s has shape [%d, %d, %d, %d], and not [1, %d, %d, %d]", name,
           array.batch, array.heads, array.tokens, array.dim, heads, rows, dim);
    return false;
}

static void do_update(struct cache *cache, const struct value *message) {
    struct kv *kv = cache->kv;
    struct form form = cache->form;
    struct array keys = get_array(message, "keys"), given = get_array(message, "values");
    int begin = kv->offset;
    if (!has_form(keys, form.heads, keys.tokens, form.key_dim, "K")
        || !has_form(given, form.heads, keys.tokens, form.value_dim, "V"))
        return;
    if (begin + keys.tokens > kv->rows.room)
        reserve_rows(&kv->rows, cache->form, 2 * (begin + keys.tokens));
    store(kv->rows.keys, keys, NULL, begin);
    store(kv->rows.values, given, NULL, begin);
    kv->offset += keys.tokens;
    capture(cache, begin, kv->offset);
    add_offset(kv);
    add_rows(&kv->rows, cache->form, 0, kv->offset);
    add_kv_mask(kv, keys.tokens, (int)get_number(message, "rows"));
}

static void do_view(struct cache *cache, const struct value *message) {
    (void)message;
    if (cache->kv->offset) add_rows(&cache->kv->rows, cache->form, 0, cache->kv->offset);
    else add(",\"keys\":null,\"values\":null");
}

static void do_size(struct cache *cache, const struct value *message) {
    (void)message;
    add(",\"size\":%d", cache->kv->offset);
}

static void do_trim(struct cache *cache, const struct value *message) {
    struct kv *kv = cache->kv;
    long count = get_number(message, "count");
    if (count < 0) {
        refuse("usage", "trim: count %ld is negative", count);
        return;
    }
    int trimmed = count < kv->offset ? (int)count : kv->offset;
    kv->offset -= trimmed;
    add(",\"trimmed\":%d", trimmed);
    add_offset(kv);
}

static void do_clone(struct cache *cache, const struct value *message) {
    (void)message;
    struct cache *copy = allocate(1, sizeof *copy);
    *copy = *cache;
    copy->kv = allocate(1, sizeof *copy->kv);
    copy->kv->offset = cache->kv->offset;
    copy->kv->is_additive = cache->kv->is_additive;
    copy_rows(&copy->kv->rows, 0, &cache->kv->rows, 0, cache->kv->offset, cache->form);
    add(",\"cache\":%d", put_item(&caches, copy));
}

static void do_free(struct cache *cache, const struct value *message) {
    (void)message;
    clear_schedule(cache->kv, true);
    free_rows(&cache->kv->rows);
    cache->kv->offset = 0;
    add_offset(cache->kv);
}

static void do_snapshot(struct cache *cache, const struct value *message) {
    long begin = get_number(message, "begin");
    int offset = cache->kv->offset, first = begin > 0 ? (int)begin : 0, number = -1;
    if (first < offset)
        number = make_snapshot(&cache->kv->rows, first, cache->form, first, offset);
    add(",");
    add_snapshot("snapshot", number);
}

static void do_restore(struct cache *cache, const struct value *message) {
    struct kv *kv = cache->kv;
    long target = get_number(message, "target");
    bool ok = 0 <= target && target <= kv->offset;
    if (!is_null(message, "snapshot")) {
        struct snapshot *snapshot = get_item(&snapshots, get_number(message, "snapshot"));
        int begin = snapshot->begin;
        ok = 0 <= target && target <= snapshot->end && kv->offset >= begin;
        if (ok && target > begin)
            copy_rows(&kv->rows, begin, &snapshot->rows, 0, (int)target - begin,
                      cache->form);
    }
    if (ok) kv->offset = (int)target;
    add(",\"ok\":%s", ok ? "true" : "false");
    add_offset(kv);
}

static void do_split(struct cache *cache, const struct value *message) {
    long number = get_number(message, "snapshot"), cut = get_number(message, "at");
    struct snapshot *whole = get_item(&snapshots, number);
    int begin = whole->begin, end = whole->end, parent = -1, child = -1;
    if (cut <= begin) {
        child = (int)number;
    } else if (cut >= end) {
        parent = (int)number;
    } else {
        int at_row = (int)cut - begin;
        parent = make_snapshot(&whole->rows, 0, cache->form, begin, (int)cut);
        child = make_snapshot(&whole->rows, at_row, cache->form, (int)cut, end);
        drop_snapshot(number);
    }
    add(",");
    add_snapshot("parent", parent);
    add(",");
    add_snapshot("child", child);
}

static void do_merge(struct cache *cache, const struct value *message) {
    bool has_parent = !is_null(message, "parent"), has_child = !is_null(message, "child");
    long sides[2] = {get_number(message, "parent"), get_number(message, "child")};
    int merged = -1;
    if (has_parent && has_child) {
        struct snapshot *parent = get_item(&snapshots, sides[0]);
        struct snapshot *child = get_item(&snapshots, sides[1]);
        if (parent->end != child->begin) {
            refuse("usage", "merge: [%d, %d) and [%d, %d) are not adjacent",
                   parent->begin, parent->end, child->begin, child->end);
            return;
        }
        int length = parent->end - parent->begin, more = child->end - child->begin;
        merged = make_snapshot(&parent->rows, 0, cache->form, parent->begin, parent->end);
        struct snapshot *both = get_item(&snapshots, merged);
        copy_rows(&both->rows, length, &child->rows, 0, more, cache->form);
        both->end = child->end;
    }
    if (has_parent) drop_snapshot(sides[0]);
    if (has_child) drop_snapshot(sides[1]);
    add(",");
    add_snapshot("snapshot", merged);
}

static void do_close(struct cache *cache, const struct value *message) {
    (void)cache;
    drop_snapshot(get_number(message, "snapshot"));
}

static void do_prepare(struct cache *cache, const struct value *message) {
    struct kv *kv = cache->kv;
    struct numbers offsets = get_numbers(message, "offsets");
    const char *why = kv->scheduled.count ? "earlier captures were not taken" : NULL;
    for (int place = 1; place < offsets.count; place++)
        if (offsets.items[place - 1] >= offsets.items[place]) why = "no ascending offsets";
    if (offsets.count && offsets.items[0] < kv->offset) why = "an offset is behind";
    if (why) {
        refuse("usage", "prepare: %s", why);
        free(offsets.items);
        return;
    }
    clear_schedule(kv, false);
    kv->scheduled = offsets;
    kv->start = kv->offset;
    kv->captured = allocate((size_t)offsets.count, sizeof *kv->captured);
    for (int place = 0; place < offsets.count; place++) kv->captured[place] = -1;
}

static void do_take(struct cache *cache, const struct value *message) {
    (void)message;
    struct kv *kv = cache->kv;
    add(",\"snapshots\":[");
    for (int place = 0; place < kv->scheduled.count; place++) {
        if (place) add(",");
        int number = kv->captured[place];
        if (number < 0) {
            add("null");
            continue;
        }
        struct snapshot *snapshot = get_item(&snapshots, number);
        add("{\"number\":%d,\"begin\":%d,\"end\":%d}", number, snapshot->begin,
            snapshot->end);
    }
    add("]");
    clear_schedule(kv, false);
}

/* --- causal: many sequences in one pool of cells -----------------------------------------
 * A cell holds one token: its position, and the sequences that it belongs to, as bits; a
 * cell without a bit is free. A row of `layers` is the memory of one layer, by cells. */

struct cell {
    long position;
    uint64_t owners;
};

struct causal {
    int layers, sequences, batch, cell_count, cache_padding, mask_padding;
    bool can_shift, is_permuted;
    struct numbers bases; /* of the rotation, taken in turn by the layers */
    struct cell *cells;
    struct rows *rows;    /* of each layer */
    /* The open pass. row_count 0: none is open. */
    int row_count;
    bool is_reserving;
    long *positions, *owners; /* of each row */
    bool *looks_ahead;
    int *places; /* the cell of each row */
};

static bool holds(const struct cell *cell, long sequence) {
    return cell->owners >> sequence & 1;
}

static void close_pass(struct causal *causal) { causal->row_count = 0; }

static bool is_sequence(const struct causal *causal, long sequence) {
    if (0 <= sequence && sequence < causal->sequences) return true;
    refuse("usage", "sequence %ld is none of 0 ... %d", sequence, causal->sequences - 1);
    return false;
}

static bool are_rows(struct numbers named, int rows) {
    for (int place = 0; place < named.count; place++)
        if (named.items[place] < 0 || named.items[place] >= rows) {
            refuse("usage", "row %ld is none of 0 ... %d", named.items[place], rows - 1);
            return false;
        }
    return true;
}

static bool is_batch(const struct causal *causal, struct numbers positions,
                     struct numbers owners) {
    int rows = positions.count;
    if (rows != owners.count)
        refuse("usage", "%d positions, but %d sequences", rows, owners.count);
    else if (!rows)
        refuse("usage", "the batch is empty");
    else if (rows > causal->batch)
        refuse("usage", "a batch of %d rows; at most %d", rows, causal->batch);
    else {
        for (int row = 0; row < rows; row++) {
            if (positions.items[row] < 0) {
                refuse("usage", "position %ld is negative", positions.items[row]);
                return false;
            }
            if (!is_sequence(causal, owners.items[row])) return false;
        }
        return true;
    }
    return false;
}

/* The rows go to the lowest free cells. False if there are not enough. */
static bool add_tokens(struct causal *causal, struct numbers positions,
                       struct numbers owners) {
    int rows = positions.count, free_cells = 0;
    for (int cell = 0; cell < causal->cell_count; cell++)
        free_cells += !causal->cells[cell].owners;
    if (free_cells < rows) {
        refuse("cache-full", "%d tokens, and room for %d", rows, free_cells);
        return false;
    }
    for (int row = 0, cell = 0; row < rows; cell++)
        if (!causal->cells[cell].owners) {
            causal->cells[cell].position = positions.items[row];
            causal->cells[cell].owners = UINT64_C(1) << owners.items[row];
            causal->places[row++] = cell;
        }
    return true;
}

static void do_forward(struct cache *cache, const struct value *message) {
    struct causal *causal = cache->causal;
    struct numbers positions = get_numbers(message, "positions");
    struct numbers owners = get_numbers(message, "sequences");
    struct numbers exceptions = get_numbers(message, "exceptions");
    struct numbers images = get_numbers(message, "multimodal");
    int rows = positions.count;
    if (is_batch(causal, positions, owners) && are_rows(exceptions, rows)
        && are_rows(images, rows)) {
        close_pass(causal);
        causal->is_reserving = get_field(message, "reserve")->number != 0;
        if (causal->is_reserving || add_tokens(causal, positions, owners)) {
            causal->row_count = rows;
            for (int row = 0; row < rows; row++) {
                causal->positions[row] = positions.items[row];
                causal->owners[row] = owners.items[row];
                causal->looks_ahead[row] = false;
            }
            for (int place = 0; place < exceptions.count; place++)
                causal->looks_ahead[exceptions.items[place]] = true;
        }
    }
    free(positions.items);
    free(owners.items);
    free(exceptions.items);
    free(images.items);
}

/* The layer of a message about the open pass, -1 if there is none. */
static int get_layer(const struct causal *causal, const struct value *message) {
    long layer = get_number(message, "layer");
    if (!causal->row_count) {
        refuse("usage", "no pass is open; forward opens one");
        return -1;
    }
    if (layer < 0 || layer >= causal->layers) {
        refuse("usage", "layer %ld is none of 0 ... %d", layer, causal->layers - 1);
        return -1;
    }
    return (int)layer;
}

static void do_put(struct cache *cache, const struct value *message) {
    struct causal *causal = cache->causal;
    struct form form = cache->form;
    struct array keys = get_array(message, "keys"), given = get_array(message, "values");
    int layer = get_layer(causal, message), rows = causal->row_count;
    if (layer < 0 || !has_form(keys, form.heads, rows, form.key_dim, "K")
        || !has_form(given, form.heads, rows, form.value_dim, "V")
        || causal->is_reserving)
        return;
    store(causal->rows[layer].keys, keys, causal->places, 0);
    store(causal->rows[layer].values, given, causal->places, 0);
}

static bool is_visible(const struct causal *causal, int row, const struct cell *cell) {
    return holds(cell, causal->owners[row])
        && (cell->position <= causal->positions[row] || causal->looks_ahead[row]);
}

/* The cells from the first to the last one that some row sees, in whole steps of the
 * padding. */
static void find_columns(const struct causal *causal, int *begin, int *end) {
    int first = causal->cell_count, last = -1, padding = causal->cache_padding;
    for (int cell = 0; cell < causal->cell_count; cell++)
        for (int row = 0; row < causal->row_count; row++)
            if (is_visible(causal, row, &causal->cells[cell])) {
                if (cell < first) first = cell;
                last = cell;
            }
    if (causal->is_reserving || last < 0) first = 0, last = causal->cell_count - 1;
    *begin = first / padding * padding;
    *end = (last / padding + 1) * padding;
}

/* V with its columns last. */
static void add_permuted(const float *numbers, int heads, int dim, int begin, int end) {
    begin_array("values", heads, dim, end - begin);
    for (int head = 0; head < heads; head++)
        for (int place = 0; place < dim; place++)
            for (int cell = begin; cell < end; cell++)
                add_number(numbers[((size_t)cell * (size_t)heads + (size_t)head)
                                   * (size_t)dim + (size_t)place]);
    end_array();
}

static void do_get(struct cache *cache, const struct value *message) {
    struct causal *causal = cache->causal;
    struct form form = cache->form;
    int layer = get_layer(causal, message), begin, end;
    if (layer < 0) return;
    struct rows *rows = &causal->rows[layer];
    find_columns(causal, &begin, &end);
    add_array("keys", rows->keys, form.heads, form.key_dim, begin, end);
    if (causal->is_permuted)
        add_permuted(rows->values, form.heads, form.value_dim, begin, end);
    else
        add_array("values", rows->values, form.heads, form.value_dim, begin, end);
    int padding = causal->mask_padding;
    int padded = (causal->row_count + padding - 1) / padding * padding;
    add(",\"mask\":{\"shape\":[%d,%d],\"data\":[", padded, end - begin);
    for (int row = 0; row < padded; row++)
        for (int cell = begin; cell < end; cell++) {
            bool seen = row < causal->row_count && !causal->is_reserving
                     && is_visible(causal, row, &causal->cells[cell]);
            add_text(seen ? "0," : "-1e999,");
        }
    end_array();
}

/* The sequence leaves its tokens in [begin, end). */
static void drop(struct causal *causal, long sequence, long begin, long end) {
    for (int cell = 0; cell < causal->cell_count; cell++) {
        struct cell *token = &causal->cells[cell];
        if (holds(token, sequence) && begin <= token->position && token->position < end)
            token->owners &= ~(UINT64_C(1) << sequence);
    }
}

static void do_copy_prefix(struct cache *cache, const struct value *message) {
    struct causal *causal = cache->causal;
    long source = get_number(message, "source"), target = get_number(message, "target");
    long length = get_number(message, "length");
    if (!is_sequence(causal, source) || !is_sequence(causal, target)) return;
    if (source == target) {
        refuse("usage", "sequence %ld cannot be copied onto itself", source);
        return;
    }
    if (length < 0) {
        refuse("usage", "length %ld is negative", length);
        return;
    }
    close_pass(causal);
    drop(causal, target, 0, INT64_MAX);
    for (int cell = 0; cell < causal->cell_count; cell++)
        if (holds(&causal->cells[cell], source) && causal->cells[cell].position < length)
            causal->cells[cell].owners |= UINT64_C(1) << target;
}

/* Turns the keys of one cell by a distance: the pairs are (x[i], x[i + dim / 2]). */
static void turn(struct cache *cache, int cell, long distance) {
    struct form form = cache->form;
    int half = form.key_dim / 2;
    for (int layer = 0; layer < cache->causal->layers; layer++) {
        struct numbers bases = cache->causal->bases;
        double base = (double)bases.items[layer % bases.count];
        for (int head = 0; head < form.heads; head++) {
            float *key = cache->causal->rows[layer].keys
                       + ((size_t)cell * (size_t)form.heads + (size_t)head)
                       * (size_t)form.key_dim;
            for (int pair = 0; pair < half; pair++) {
                double angle = (double)distance * pow(base, -2.0 * pair / form.key_dim);
                double x = key[pair], y = key[pair + half];
                key[pair] = (float)(x * cos(angle) - y * sin(angle));
                key[pair + half] = (float)(x * sin(angle) + y * cos(angle));
            }
        }
    }
}

/* Whether what follows a gap can move up: it is refused, if not. */
static bool can_move(const struct causal *causal, long sequence, long end) {
    bool follows = false, is_shared = false;
    for (int cell = 0; cell < causal->cell_count; cell++) {
        const struct cell *token = &causal->cells[cell];
        if (holds(token, sequence) && token->position >= end) {
            follows = true;
            is_shared |= token->owners != UINT64_C(1) << sequence;
        }
    }
    if (is_shared) refuse("shared", "sequence %ld shares what would move", sequence);
    else if (follows && !causal->can_shift) refuse("not-supported", "keys cannot turn");
    return !is_shared && (!follows || causal->can_shift);
}

static void do_remove(struct cache *cache, const struct value *message) {
    struct causal *causal = cache->causal;
    long sequence = get_number(message, "sequence"), begin = get_number(message, "begin");
    long end = is_null(message, "end") ? INT64_MAX : get_number(message, "end");
    if (!is_sequence(causal, sequence)) return;
    if (begin < 0 || begin > end) {
        refuse("usage", "begin %ld is negative, or behind the end", begin);
        return;
    }
    if (!can_move(causal, sequence, end)) return;
    close_pass(causal);
    drop(causal, sequence, begin, end);
    for (int cell = 0; cell < causal->cell_count && begin < end; cell++) {
        struct cell *token = &causal->cells[cell];
        if (holds(token, sequence) && token->position >= end) {
            token->position += begin - end;
            turn(cache, cell, begin - end);
        }
    }
}

static void do_can_resume(struct cache *cache, const struct value *message) {
    long position = get_number(message, "position");
    if (!is_sequence(cache->causal, get_number(message, "sequence"))) return;
    if (position < 0) refuse("usage", "position %ld is negative", position);
    else add(",\"result\":true");
}

/* The cells, and the memory of each layer. */
struct saved {
    int layers;
    struct cell *cells;
    struct rows *rows;
};

static void copy_content(struct cache *cache, struct saved to, struct saved from) {
    int count = cache->causal->cell_count;
    memcpy(to.cells, from.cells, (size_t)count * sizeof *to.cells);
    for (int layer = 0; layer < cache->causal->layers; layer++)
        copy_rows(&to.rows[layer], 0, &from.rows[layer], 0, count, cache->form);
}

static struct saved get_content(const struct causal *causal) {
    return (struct saved){causal->layers, causal->cells, causal->rows};
}

static void do_save(struct cache *cache, const struct value *message) {
    (void)message;
    struct saved *saved = allocate(1, sizeof *saved);
    saved->layers = cache->causal->layers;
    saved->cells = allocate((size_t)cache->causal->cell_count, sizeof *saved->cells);
    saved->rows = allocate((size_t)saved->layers, sizeof *saved->rows);
    copy_content(cache, *saved, get_content(cache->causal));
    add(",\"saved\":%d", put_item(&saves, saved));
}

static void do_load(struct cache *cache, const struct value *message) {
    struct saved *saved = get_item(&saves, get_number(message, "saved"));
    close_pass(cache->causal);
    copy_content(cache, get_content(cache->causal), *saved);
}

static void free_content(struct saved content) {
    for (int layer = 0; layer < content.layers; layer++) free_rows(&content.rows[layer]);
    free(content.rows);
    free(content.cells);
}

/* --- messages ---------------------------------------------------------------------------*/

static const char HELLO[] =
    ",\"protocol\":1,\"name\":\"lockstep-c\",\"version\":\"1\",\"poison\":true,"
    "\"dtypes\":[\"float32\"],\"contracts\":{"
    "\"layer\":{\"kv\":{\"refuses\":true,\"operations\":[\"update\",\"state\",\"view\","
    "\"size\",\"trim\",\"clone\",\"free\",\"snapshot\",\"restore\",\"split\",\"merge\","
    "\"close\",\"prepare\",\"take\"],"
    "\"config\":{\"mask_padding\":[1,4],\"mask_form\":[\"any\",\"additive\"]}}},"
    "\"unified\":{\"causal\":{\"refuses\":true,\"operations\":[\"forward\",\"put\",\"get\","
    "\"copy_prefix\",\"remove\",\"can_resume\",\"save\",\"load\"],"
    "\"config\":{\"layers\":[1,2,1,3],\"cache_padding\":[1,2,1,4,32],"
    "\"mask_padding\":[1,2,1,4,32],\"permuted_values\":[false,true]}}}}";

static struct causal *open_causal(const struct value *config, struct form form) {
    struct causal *causal = allocate(1, sizeof *causal);
    causal->layers = (int)get_number(config, "layers");
    causal->sequences = (int)get_number(config, "sequences");
    causal->batch = (int)get_number(config, "batch");
    causal->cache_padding = (int)get_number(config, "cache_padding");
    causal->mask_padding = (int)get_number(config, "mask_padding");
    causal->can_shift = get_field(config, "shift")->number != 0;
    causal->is_permuted = get_field(config, "permuted_values")->number != 0;
    causal->bases = get_numbers(config, "rope_bases");
    int room = causal->sequences * (int)get_number(config, "capacity");
    int padding = causal->cache_padding;
    causal->cell_count = (room + padding - 1) / padding * padding;
    causal->cells = allocate((size_t)causal->cell_count, sizeof *causal->cells);
    causal->rows = allocate((size_t)causal->layers, sizeof *causal->rows);
    for (int layer = 0; layer < causal->layers; layer++)
        reserve_rows(&causal->rows[layer], form, causal->cell_count);
    size_t batch = (size_t)causal->batch;
    causal->positions = allocate(batch, sizeof *causal->positions);
    causal->owners = allocate(batch, sizeof *causal->owners);
    causal->looks_ahead = allocate(batch, sizeof *causal->looks_ahead);
    causal->places = allocate(batch, sizeof *causal->places);
    return causal;
}

static void do_open(const struct value *message) {
    const struct value *config = get_field(message, "config");
    const char *kind = get_field(config, "kind")->text;
    struct cache *cache = allocate(1, sizeof *cache);
    cache->form.heads = (int)get_number(config, "heads");
    cache->form.key_dim = (int)get_number(config, "key_dim");
    cache->form.value_dim = (int)get_number(config, "value_dim");
    cache->is_causal = !strcmp(kind, "causal");
    if (cache->is_causal) {
        cache->causal = open_causal(config, cache->form);
    } else {
        cache->kv = allocate(1, sizeof *cache->kv);
        const char *form = get_field(config, "mask_form")->text;
        cache->kv->is_additive = !strcmp(form, "additive");
    }
    add(",\"cache\":%d", put_item(&caches, cache));
}

static void drop_cache(struct cache *cache) {
    if (cache->is_causal) {
        free_content(get_content(cache->causal));
        free(cache->causal->bases.items);
        free(cache->causal->positions);
        free(cache->causal->owners);
        free(cache->causal->looks_ahead);
        free(cache->causal->places);
        free(cache->causal);
    } else {
        clear_schedule(cache->kv, true);
        free_rows(&cache->kv->rows);
        free(cache->kv);
    }
    free(cache);
}

/* Nobody will name these again. */
static void do_drop(const struct value *message) {
    for (uint32_t list = message->first; list; list = values[list].next) {
        const char *what = values[list].name;
        for (uint32_t item = values[list].first; item; item = values[item].next) {
            long number = (long)values[item].number;
            if (!strcmp(what, "snapshots")) {
                drop_snapshot(number);
            } else if (!strcmp(what, "caches")) {
                drop_cache(get_item(&caches, number));
                caches.items[number] = NULL;
            } else if (!strcmp(what, "saved")) {
                struct saved *saved = get_item(&saves, number);
                free_content(*saved);
                free(saved);
                saves.items[number] = NULL;
            }
        }
    }
}

static const struct operation {
    const char *name;
    bool is_causal;
    void (*run)(struct cache *, const struct value *);
} OPERATIONS[] = {
    {"update", false, do_update},     {"state", false, do_view},
    {"view", false, do_view},         {"size", false, do_size},
    {"trim", false, do_trim},         {"clone", false, do_clone},
    {"free", false, do_free},         {"snapshot", false, do_snapshot},
    {"restore", false, do_restore},   {"split", false, do_split},
    {"merge", false, do_merge},       {"close", false, do_close},
    {"prepare", false, do_prepare},   {"take", false, do_take},
    {"forward", true, do_forward},    {"put", true, do_put},
    {"get", true, do_get},            {"copy_prefix", true, do_copy_prefix},
    {"remove", true, do_remove},      {"can_resume", true, do_can_resume},
    {"save", true, do_save},          {"load", true, do_load},
};

static void run_operation(const char *name, const struct value *message) {
    struct cache *cache = get_item(&caches, get_number(message, "cache"));
    for (size_t place = 0; place < sizeof OPERATIONS / sizeof *OPERATIONS; place++)
        if (!strcmp(OPERATIONS[place].name, name)
            && OPERATIONS[place].is_causal == cache->is_causal) {
            OPERATIONS[place].run(cache, message);
            return;
        }
    refuse("missing", "this cache has no operation %s", name);
}

static void run_message(char *line) {
    at = line;
    value_count = 0;
    make_value(NOTHING);
    uint32_t root = read_value();
    const struct value *message = &values[root];
    const char *name = get_field(message, "op")->text;
    answer_length = 0;
    add("{\"id\":%ld", get_number(message, "id"));
    answer_begin = answer_length;
    if (!strcmp(name, "hello")) add_text(HELLO);
    else if (!strcmp(name, "open")) do_open(message);
    else if (!strcmp(name, "drop")) do_drop(message);
    else run_operation(name, message);
    add("}\n");
    fwrite(answer, 1, answer_length, stdout);
    fflush(stdout);
}

static void free_all(void) {
    for (int number = 0; number < caches.count; number++)
        if (caches.items[number]) drop_cache(caches.items[number]);
    for (int number = 0; number < snapshots.count; number++)
        if (snapshots.items[number]) drop_snapshot(number);
    for (int number = 0; number < saves.count; number++)
        if (saves.items[number]) {
            free_content(*(struct saved *)saves.items[number]);
            free(saves.items[number]);
        }
    free(caches.items);
    free(snapshots.items);
    free(saves.items);
    free(values);
    free(answer);
}

int main(void) {
    char *line = NULL;
    size_t room = 0, length = 0;
    for (int letter; (letter = getchar()) != EOF;) {
        if (length + 1 >= room) line = grow(line, room = room ? 2 * room : 4096, 1);
        line[length++] = (char)letter;
        if (letter == '\n') {
            line[length] = 0;
            run_message(line);
            length = 0;
        }
    }
    free(line);
    free_all();
    return 0;
}
