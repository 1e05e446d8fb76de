/* SPDX-License-Identifier: MIT
 * Copyright (c) 2026 the Lockstep authors
 *
 * A kit for Lockstep drivers in C11, to be copied and included by one file.
 *
 * It reads messages, writes answers, numbers caches and snapshots, and refuses what it
 * cannot answer. You write caches: declare a `struct lockstep_kind` for each kind, whose
 * operations read fields of the message with `lockstep_get_…` and put fields of the
 * answer with `lockstep_put_…`, and call `lockstep_run`. `lockstep_refuse` ends an
 * operation: read all fields, and refuse, before you allocate or change anything. */

#ifndef LOCKSTEP_H
#define LOCKSTEP_H

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
#define LOCKSTEP_NORETURN [[noreturn]]
#else
#define LOCKSTEP_NORETURN _Noreturn
#endif

#define LOCKSTEP_DEEPEST 64 /* lists in lists */

/* The largest size of an axis: a list of so many tokens fits in memory, even if V has no
 * numbers that would bound it. */
#define LOCKSTEP_LARGEST (1 << 24)

/* --- what a driver declares ------------------------------------------------------------
 * `declares` is an object of JSON: all that the README of drivers lists beside what the
 * kit adds. Lists end with an item of zeros. */

struct lockstep_operation {
    const char *name;
    void (*run)(void *cache); /* NULL: declared, but not written yet */
};

struct lockstep_kind {
    const char *contract, *kind;
    /* {"refuses": true, "config": {…}}; the kit adds "operations", unless they are there:
     * those that programs have. */
    const char *declares;
    /* Reads the config with lockstep_get_…; returns a cache. */
    void *(*open)(void);
    void (*drop)(void *cache);
    const struct lockstep_operation *operations;
};

struct lockstep_driver {
    const char *declares; /* {"name": "…", …}; the kit adds "protocol" and "contracts" */
    const struct lockstep_kind *kinds;
};

/* Numbers in row-major order. Arrays that are read live until the answer is out. */
struct lockstep_array {
    int axes, shape[8];
    float *data;
};

/* K or V as caches store them: the heads of a token together, [tokens, heads, dim]. */
struct lockstep_tokens {
    int count;
    float *data;
};

/* The positions [begin, end) of a cache. `drop` frees the content. */
struct lockstep_snapshot {
    int begin, end;
    void *content;
    void (*drop)(void *content);
};

struct lockstep_integers {
    int count;
    long *items;
};

/* --- memory --------------------------------------------------------------------------*/

LOCKSTEP_NORETURN static inline void lockstep_die(const char *why) {
    fprintf(stderr, "lockstep.h: %s\n", why);
    exit(1);
}

/* Zeros, to be freed by the caller. */
static inline void *lockstep_allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) lockstep_die("out of memory");
    return memory;
}

static inline void *lockstep_grow(void *memory, size_t count, size_t size) {
    memory = realloc(memory, count * size);
    if (!memory) lockstep_die("out of memory");
    return memory;
}

struct lockstep_piece {
    struct lockstep_piece *next;
    double memory[]; /* aligned for all that is kept in it */
};

/* Zeros that live until the answer is out. */
static inline void *lockstep_borrow(size_t count, size_t size);

/* --- the state of the driver -----------------------------------------------------------
 * There is one driver in a process, and one message at a time. */

enum lockstep_type {
    LOCKSTEP_NULL,
    LOCKSTEP_BOOLEAN,
    LOCKSTEP_NUMBER,
    LOCKSTEP_TEXT,
    LOCKSTEP_LIST,
    LOCKSTEP_OBJECT
};

struct lockstep_value {
    enum lockstep_type type;
    double number;      /* of a number; 1 for true */
    char *text;         /* of a text */
    const char *source; /* where a number stands in the line */
    char *name;         /* of what is in an object */
    uint32_t first;     /* of a list or object: its first item, 0 if it is empty */
    uint32_t next;      /* the next one in the same list */
    uint32_t count;
};

struct lockstep_cache {
    const struct lockstep_kind *kind;
    void *content;
    int owner; /* the number of the cache that it is a part of, or -1 */
};

struct lockstep_saved {
    void *content;
    void (*drop)(void *content);
};

struct lockstep_table {
    void **items; /* NULL where a number is free */
    int count;
};

static struct {
    const struct lockstep_driver *driver;
    const struct lockstep_kind *kind; /* of the cache of this message */
    int number;                       /* of this cache */
    jmp_buf refused;
    struct lockstep_piece *borrowed;
    struct lockstep_value *values; /* values[0] is null */
    uint32_t value_count, value_room, message;
    char *line;
    size_t line_room;
    char *at; /* the next character of the line */
    char *answer;
    size_t length, room, begin; /* of the answer; begin: behind {"id":… */
    struct lockstep_table caches, snapshots, saved;
} lockstep;

static inline void *lockstep_borrow(size_t count, size_t size) {
    struct lockstep_piece *piece =
        (struct lockstep_piece *)lockstep_allocate(1, sizeof *piece + (count ? count : 1) * size);
    piece->next = lockstep.borrowed;
    lockstep.borrowed = piece;
    return piece->memory;
}

static inline void lockstep_return(void) {
    while (lockstep.borrowed) {
        struct lockstep_piece *piece = lockstep.borrowed;
        lockstep.borrowed = piece->next;
        free(piece);
    }
}

/* --- writing JSON --------------------------------------------------------------------*/

static inline void lockstep_add(const char *text) {
    size_t length = strlen(text);
    if (lockstep.length + length + 1 > lockstep.room) {
        lockstep.room = 2 * (lockstep.length + length + 1);
        lockstep.answer = (char *)lockstep_grow(lockstep.answer, lockstep.room, 1);
    }
    memcpy(lockstep.answer + lockstep.length, text, length + 1);
    lockstep.length += length;
}

static inline void lockstep_add_integer(long number) {
    char text[32];
    snprintf(text, sizeof text, "%ld", number);
    lockstep_add(text);
}

/* Nine digits tell any two floats apart. */
static inline void lockstep_add_number(float number) {
    char text[32];
    if (isnan(number)) snprintf(text, sizeof text, "null");
    else if (isinf(number))
        snprintf(text, sizeof text, number > 0 ? "\"inf\"" : "\"-inf\"");
    else snprintf(text, sizeof text, "%.9g", (double)number);
    lockstep_add(text);
}

/* A text in quotes; what would need more than a backslash becomes a question mark. */
static inline void lockstep_add_text(const char *text) {
    lockstep_add("\"");
    for (; *text; text++) {
        char letter[3] = {*text, 0, 0};
        if (*text == '"' || *text == '\\') letter[0] = '\\', letter[1] = *text;
        else if ((unsigned char)*text < ' ' || (unsigned char)*text > '~')
            letter[0] = '?';
        lockstep_add(letter);
    }
    lockstep_add("\"");
}

static inline void lockstep_add_name(const char *name) {
    lockstep_add(",\"");
    lockstep_add(name);
    lockstep_add("\":");
}

/* --- refusals ------------------------------------------------------------------------*/

/* Answers an error in the place of all else, and ends the operation. */
LOCKSTEP_NORETURN static inline void lockstep_refuse(const char *error, const char *format, ...) {
    char message[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    lockstep.length = lockstep.begin;
    lockstep_add_name("error");
    lockstep_add_text(error);
    lockstep_add_name("message");
    lockstep_add_text(message);
    longjmp(lockstep.refused, 1);
}

/* --- reading JSON ----------------------------------------------------------------------
 * A line becomes a tree of values. Their memory, and the text that they point into, is
 * used again for the next line. */

LOCKSTEP_NORETURN static inline void lockstep_reject(void) {
    lockstep_refuse("failed", "the line is not JSON of a message");
}

static inline void lockstep_skip(void) {
    while (*lockstep.at && strchr(" \t\r\n", *lockstep.at)) lockstep.at++;
}

static inline void lockstep_expect(char wanted) {
    lockstep_skip();
    if (*lockstep.at != wanted) lockstep_reject();
    lockstep.at++;
}

static inline uint32_t lockstep_make_value(enum lockstep_type type) {
    if (lockstep.value_count == lockstep.value_room) {
        lockstep.value_room = lockstep.value_room ? 2 * lockstep.value_room : 1024;
        lockstep.values = (struct lockstep_value *)lockstep_grow(
            lockstep.values, lockstep.value_room, sizeof *lockstep.values);
    }
    struct lockstep_value *value = &lockstep.values[lockstep.value_count];
    memset(value, 0, sizeof *value);
    value->type = type;
    return lockstep.value_count++;
}

static inline uint32_t lockstep_read_unit(void) {
    if (*lockstep.at != 'u' || strspn(lockstep.at + 1, "0123456789abcdefABCDEF") < 4)
        lockstep_reject();
    char digits[5] = {0};
    memcpy(digits, lockstep.at + 1, 4);
    lockstep.at += 5;
    return (uint32_t)strtoul(digits, NULL, 16);
}

/* What stands behind a backslash goes to `to`, in UTF-8; returns its end. */
static inline char *lockstep_read_escape(char *to) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *found = *lockstep.at ? strchr(letters, *lockstep.at) : NULL;
    if (found) {
        lockstep.at++;
        *to++ = meant[found - letters];
        return to;
    }
    uint32_t code = lockstep_read_unit();
    if (code >> 10 == 0x36 && *lockstep.at == '\\') {
        lockstep.at++;
        uint32_t low = lockstep_read_unit() ^ 0xdc00;
        if (low > 0x3ff) lockstep_reject();
        code = 0x10000 + ((code & 0x3ff) << 10) + low;
    }
    if (!code || code >> 11 == 0x1b) lockstep_reject(); /* half of a surrogate pair */
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    for (int place = more; place; place--, code >>= 6)
        to[place] = (char)(0x80 | (code & 0x3f));
    *to = (char)(more ? (0xff00u >> (more + 1)) | code : code);
    return to + more + 1;
}

/* In its place in the line: an escape is never shorter than what it means. */
static inline char *lockstep_read_text(void) {
    lockstep_expect('"');
    char *text = lockstep.at, *to = text;
    while (*lockstep.at != '"') {
        if (!*lockstep.at) lockstep_reject();
        if (*lockstep.at != '\\') {
            *to++ = *lockstep.at++;
        } else {
            lockstep.at++;
            to = lockstep_read_escape(to);
        }
    }
    lockstep.at++;
    *to = 0;
    return text;
}

static inline bool lockstep_accept(const char *word) {
    size_t length = strlen(word);
    if (strncmp(lockstep.at, word, length)) return false;
    lockstep.at += length;
    return true;
}

static inline uint32_t lockstep_read_value(int depth);

static inline uint32_t lockstep_read_items(enum lockstep_type type, char end, int depth) {
    uint32_t list = lockstep_make_value(type), last = 0;
    lockstep.at++;
    for (lockstep_skip(); *lockstep.at != end; lockstep_skip()) {
        if (last) lockstep_expect(',');
        lockstep_skip();
        char *name = NULL;
        if (type == LOCKSTEP_OBJECT) {
            name = lockstep_read_text();
            lockstep_expect(':');
        }
        uint32_t item = lockstep_read_value(depth + 1);
        lockstep.values[item].name = name;
        if (last) lockstep.values[last].next = item;
        else lockstep.values[list].first = item;
        last = item;
        lockstep.values[list].count++;
    }
    lockstep.at++;
    return list;
}

static inline uint32_t lockstep_read_value(int depth) {
    if (depth > LOCKSTEP_DEEPEST) lockstep_reject();
    lockstep_skip();
    if (*lockstep.at == '[') return lockstep_read_items(LOCKSTEP_LIST, ']', depth);
    if (*lockstep.at == '{') return lockstep_read_items(LOCKSTEP_OBJECT, '}', depth);
    uint32_t value = lockstep_make_value(LOCKSTEP_NULL);
    struct lockstep_value *made = &lockstep.values[value];
    if (*lockstep.at == '"') {
        made->type = LOCKSTEP_TEXT;
        made->text = lockstep_read_text();
    } else if (lockstep_accept("true")) {
        made->type = LOCKSTEP_BOOLEAN;
        made->number = 1;
    } else if (lockstep_accept("false")) {
        made->type = LOCKSTEP_BOOLEAN;
    } else if (!lockstep_accept("null")) {
        char *end = lockstep.at; /* strtod alone would take "inf" and "0x1" */
        while (*end && strchr("+-.0123456789eE", *end)) end++;
        made->type = LOCKSTEP_NUMBER;
        made->source = lockstep.at;
        made->number = strtod(lockstep.at, &lockstep.at);
        if (lockstep.at != end || end == made->source) lockstep_reject();
    }
    return value;
}

/* --- the fields of a message, or of a config in `open` -------------------------------*/

static inline const struct lockstep_value *lockstep_find(uint32_t object,
                                                         const char *name) {
    if (lockstep.values[object].type != LOCKSTEP_OBJECT) return NULL;
    for (uint32_t item = lockstep.values[object].first; item;
         item = lockstep.values[item].next)
        if (!strcmp(lockstep.values[item].name, name)) return &lockstep.values[item];
    return NULL;
}

static inline const struct lockstep_value *lockstep_get(const char *name) {
    const struct lockstep_value *value = lockstep_find(lockstep.message, name);
    if (!value) lockstep_refuse("failed", "the message has no %s", name);
    return value;
}

static inline const struct lockstep_value *lockstep_get_typed(const char *name,
                                                              enum lockstep_type type,
                                                              const char *what) {
    const struct lockstep_value *value = lockstep_get(name);
    if (value->type != type) lockstep_refuse("failed", "%s is not %s", name, what);
    return value;
}

static inline bool lockstep_is_null(const char *name) {
    return lockstep_get(name)->type == LOCKSTEP_NULL;
}

static inline bool lockstep_is_integer(const struct lockstep_value *value) {
    double number = value->number;
    return value->type == LOCKSTEP_NUMBER && number == floor(number)
           && fabs(number) < (double)(INT64_C(1) << 53);
}

/* Takes 1.0 and 1e0 as well. */
static inline long lockstep_get_integer(const char *name) {
    const struct lockstep_value *value = lockstep_get(name);
    if (!lockstep_is_integer(value))
        lockstep_refuse("failed", "%s is not an integer", name);
    return (long)value->number;
}

static inline bool lockstep_get_boolean(const char *name) {
    return lockstep_get_typed(name, LOCKSTEP_BOOLEAN, "true or false")->number != 0;
}

static inline const char *lockstep_get_text(const char *name) {
    return lockstep_get_typed(name, LOCKSTEP_TEXT, "a text")->text;
}

static inline int lockstep_count(const char *name) {
    return (int)lockstep_get_typed(name, LOCKSTEP_LIST, "a list")->count;
}

/* An item of a list; what is not there is null. */
static inline const struct lockstep_value *lockstep_get_item(const char *name,
                                                             int place) {
    uint32_t item = lockstep_get_typed(name, LOCKSTEP_LIST, "a list")->first;
    while (item && place-- > 0) item = lockstep.values[item].next;
    return &lockstep.values[item];
}

/* An item of a list of texts; NULL for null. */
static inline const char *lockstep_get_text_at(const char *name, int place) {
    const struct lockstep_value *item = lockstep_get_item(name, place);
    if (item->type == LOCKSTEP_NULL) return NULL;
    if (item->type != LOCKSTEP_TEXT)
        lockstep_refuse("failed", "%s has an item that is not a text", name);
    return item->text;
}

static inline uint32_t lockstep_enter_value(const struct lockstep_value *object,
                                            const char *name) {
    uint32_t before = lockstep.message;
    if (object->type != LOCKSTEP_OBJECT)
        lockstep_refuse("failed", "%s is not an object", name);
    lockstep.message = (uint32_t)(object - lockstep.values);
    return before;
}

/* From here to `lockstep_leave`, which gets what is returned, the fields of an object are
 * read in the place of those of the message. */
static inline uint32_t lockstep_enter(const char *name) {
    return lockstep_enter_value(lockstep_get(name), name);
}

/* The same of an item of a list of objects. */
static inline uint32_t lockstep_enter_at(const char *name, int place) {
    return lockstep_enter_value(lockstep_get_item(name, place), name);
}

static inline void lockstep_leave(uint32_t before) { lockstep.message = before; }

/* They live until the answer is out. An item that is not an integer is a mistake of
 * usage. */
static inline struct lockstep_integers lockstep_get_integers(const char *name) {
    const struct lockstep_value *list = lockstep_get_typed(name, LOCKSTEP_LIST, "a list");
    struct lockstep_integers integers = {
        0, (long *)lockstep_borrow(list->count, sizeof(long))};
    for (uint32_t item = list->first; item; item = lockstep.values[item].next) {
        if (!lockstep_is_integer(&lockstep.values[item]))
            lockstep_refuse("usage", "%s has an item that is not an integer", name);
        integers.items[integers.count++] = (long)lockstep.values[item].number;
    }
    return integers;
}

static inline float lockstep_to_float(const struct lockstep_value *value) {
    const char *text = value->type == LOCKSTEP_TEXT ? value->text : "";
    if (value->type == LOCKSTEP_NUMBER) return strtof(value->source, NULL);
    if (value->type == LOCKSTEP_NULL || !strcmp(text, "nan")) return NAN;
    if (!strcmp(text, "inf")) return INFINITY;
    if (!strcmp(text, "-inf")) return -INFINITY;
    lockstep_refuse("failed", "an array has an item that is not a number");
}

static inline struct lockstep_array lockstep_get_array(const char *name) {
    uint32_t before = lockstep_enter(name);
    const struct lockstep_value *data =
        lockstep_get_typed("data", LOCKSTEP_LIST, "a list");
    struct lockstep_integers sizes = lockstep_get_integers("shape");
    lockstep_leave(before);
    struct lockstep_array array = {sizes.count, {0}, NULL};
    double count = 1;
    if (sizes.count > 8) lockstep_refuse("failed", "%s has more than 8 axes", name);
    for (int axis = 0; axis < sizes.count; axis++) {
        if (sizes.items[axis] < 0 || sizes.items[axis] > LOCKSTEP_LARGEST)
            lockstep_refuse("failed", "%s: a size is not in [0, %d]", name,
                            LOCKSTEP_LARGEST);
        array.shape[axis] = (int)sizes.items[axis];
        count *= (double)sizes.items[axis];
    }
    if (count != data->count)
        lockstep_refuse("failed", "%s has %u numbers, not as many as its shape says",
                        name, (unsigned)data->count);
    array.data = (float *)lockstep_borrow(data->count, sizeof(float));
    float *to = array.data;
    for (uint32_t item = data->first; item; item = lockstep.values[item].next)
        *to++ = lockstep_to_float(&lockstep.values[item]);
    return array;
}

/* K or V of a message, token by token; any shape but [1, heads, tokens, dim] is a mistake
 * of usage. */
static inline struct lockstep_tokens lockstep_get_tokens(const char *name, int heads,
                                                         int dim) {
    struct lockstep_array array = lockstep_get_array(name);
    const int *shape = array.shape;
    if (array.axes != 4 || shape[0] != 1 || shape[1] != heads || shape[3] != dim)
        lockstep_refuse("usage", "%s: the shape is not [1, %d, tokens, %d]", name, heads,
                        dim);
    int count = shape[2], all = count * heads * dim;
    struct lockstep_tokens tokens = {
        count, (float *)lockstep_borrow((size_t)all, sizeof(float))};
    for (int place = 0; place < all; place++) {
        int head = place / dim / count, token = place / dim % count;
        tokens.data[(token * heads + head) * dim + place % dim] = array.data[place];
    }
    return tokens;
}

/* --- what is numbered ----------------------------------------------------------------*/

static inline int lockstep_number(struct lockstep_table *table, void *item) {
    int number = 0;
    while (number < table->count && table->items[number]) number++;
    if (number == table->count)
        table->items =
            (void **)lockstep_grow(table->items, (size_t)++table->count, sizeof(void *));
    table->items[number] = item;
    return number;
}

static inline void *lockstep_look_up(const struct lockstep_table *table, long number,
                                     const char *name) {
    if (number < 0 || number >= table->count || !table->items[number])
        lockstep_refuse("failed", "%s: there is no number %ld", name, number);
    return table->items[number];
}

static inline void lockstep_drop_cache(int number) {
    struct lockstep_cache *cache = (struct lockstep_cache *)lockstep.caches.items[number];
    cache->kind->drop(cache->content);
    free(cache);
    lockstep.caches.items[number] = NULL;
}

static inline void lockstep_drop_snapshot(int number) {
    struct lockstep_snapshot *snapshot =
        (struct lockstep_snapshot *)lockstep.snapshots.items[number];
    snapshot->drop(snapshot->content);
    free(snapshot);
    lockstep.snapshots.items[number] = NULL;
}

static inline void lockstep_drop_saved(int number) {
    struct lockstep_saved *saved = (struct lockstep_saved *)lockstep.saved.items[number];
    saved->drop(saved->content);
    free(saved);
    lockstep.saved.items[number] = NULL;
}

/* A cache of a list is used up: frees its number, and returns what it stands for. */
static inline void *lockstep_use_cache_at(const char *name, int place) {
    struct lockstep_integers numbers = lockstep_get_integers(name);
    long number = place < numbers.count ? numbers.items[place] : -1;
    struct lockstep_cache *cache =
        (struct lockstep_cache *)lockstep_look_up(&lockstep.caches, number, name);
    void *content = cache->content;
    free(cache);
    lockstep.caches.items[number] = NULL;
    return content;
}

/* NULL if the field is null. The snapshot stays the kit's. */
static inline const struct lockstep_snapshot *lockstep_get_snapshot(const char *name) {
    if (lockstep_is_null(name)) return NULL;
    return (const struct lockstep_snapshot *)lockstep_look_up(
        &lockstep.snapshots, lockstep_get_integer(name), name);
}

/* The snapshot is used up: drops it, and frees its number. */
static inline void lockstep_use_snapshot(const char *name) {
    if (lockstep_get_snapshot(name))
        lockstep_drop_snapshot((int)lockstep_get_integer(name));
}

static inline void *lockstep_get_saved(const char *name) {
    struct lockstep_saved *saved = (struct lockstep_saved *)lockstep_look_up(
        &lockstep.saved, lockstep_get_integer(name), name);
    return saved->content;
}

/* --- the fields of an answer ---------------------------------------------------------*/

static inline void lockstep_put_null(const char *name) {
    lockstep_add_name(name);
    lockstep_add("null");
}

static inline void lockstep_put_text(const char *name, const char *text) {
    lockstep_add_name(name);
    lockstep_add_text(text);
}

static inline void lockstep_put_integer(const char *name, long number) {
    lockstep_add_name(name);
    lockstep_add_integer(number);
}

static inline void lockstep_put_boolean(const char *name, bool truth) {
    lockstep_add_name(name);
    lockstep_add(truth ? "true" : "false");
}

static inline void lockstep_put_integers(const char *name, int count, const long *items) {
    lockstep_add_name(name);
    lockstep_add("[");
    for (int place = 0; place < count; place++) {
        if (place) lockstep_add(",");
        lockstep_add_integer(items[place]);
    }
    lockstep_add("]");
}

static inline size_t lockstep_begin_array(const char *name, int axes, const int *shape) {
    size_t count = 1;
    if (name) lockstep_add_name(name);
    lockstep_add("{\"shape\":[");
    for (int axis = 0; axis < axes; axis++) {
        if (axis) lockstep_add(",");
        lockstep_add_integer(shape[axis]);
        count *= (size_t)shape[axis];
    }
    lockstep_add("],\"data\":[");
    return count;
}

/* Without a name, as an item of what lockstep_add writes. */
static inline void lockstep_put_array(const char *name, struct lockstep_array array) {
    size_t count = lockstep_begin_array(name, array.axes, array.shape);
    for (size_t place = 0; place < count; place++) {
        if (place) lockstep_add(",");
        lockstep_add_number(array.data[place]);
    }
    lockstep_add("]}");
}

/* K or V as [1, heads, tokens, dim]. */
static inline void lockstep_put_tokens(const char *name, int heads, int dim,
                                       struct lockstep_tokens tokens) {
    int shape[] = {1, heads, tokens.count, dim};
    size_t count = lockstep_begin_array(name, 4, shape);
    for (int place = 0; place < (int)count; place++) {
        int head = place / dim / tokens.count, token = place / dim % tokens.count;
        if (place) lockstep_add(",");
        lockstep_add_number(tokens.data[(token * heads + head) * dim + place % dim]);
    }
    lockstep_add("]}");
}

/* What each row sees of each column; `additive`: as 0 and -inf. */
static inline void lockstep_put_mask(int rows, int columns, const bool *seen,
                                     bool additive) {
    const int shape[] = {rows, columns};
    size_t count = lockstep_begin_array("mask", 2, shape);
    const char *yes = additive ? "0" : "1", *no = additive ? "\"-inf\"" : "0";
    for (size_t place = 0; place < count; place++) {
        if (place) lockstep_add(",");
        lockstep_add(seen[place] ? yes : no);
    }
    lockstep_add("]}");
}

/* A new cache, of the kind of the one that was asked. */
static inline void lockstep_put_cache(void *content) {
    struct lockstep_cache *cache =
        (struct lockstep_cache *)lockstep_allocate(1, sizeof *cache);
    *cache = (struct lockstep_cache){lockstep.kind, content, -1};
    lockstep_put_integer("cache", lockstep_number(&lockstep.caches, cache));
}

/* Numbers a cache of another kind that is in the one that was asked: below a prefix
 * cache. It is dropped with that; the kind need not be declared. Remember the number for
 * the next answer. */
static inline int lockstep_number_part(const struct lockstep_kind *kind, void *content) {
    struct lockstep_cache *cache =
        (struct lockstep_cache *)lockstep_allocate(1, sizeof *cache);
    *cache = (struct lockstep_cache){kind, content, lockstep.number};
    return lockstep_number(&lockstep.caches, cache);
}

static inline void lockstep_add_snapshot(struct lockstep_snapshot snapshot) {
    if (!snapshot.content) {
        lockstep_add("null");
        return;
    }
    struct lockstep_snapshot *kept =
        (struct lockstep_snapshot *)lockstep_allocate(1, sizeof *kept);
    *kept = snapshot;
    lockstep_add("{\"number\":");
    lockstep_add_integer(lockstep_number(&lockstep.snapshots, kept));
    lockstep_add(",\"begin\":");
    lockstep_add_integer(snapshot.begin);
    lockstep_add(",\"end\":");
    lockstep_add_integer(snapshot.end);
    lockstep_add("}");
}

/* The kit keeps it, and drops it one day. Without content it is null. */
static inline void lockstep_put_snapshot(const char *name,
                                         struct lockstep_snapshot snapshot) {
    lockstep_add_name(name);
    lockstep_add_snapshot(snapshot);
}

static inline void lockstep_put_snapshots(const char *name, int count,
                                          const struct lockstep_snapshot *snapshots) {
    lockstep_add_name(name);
    lockstep_add("[");
    for (int place = 0; place < count; place++) {
        if (place) lockstep_add(",");
        lockstep_add_snapshot(snapshots[place]);
    }
    lockstep_add("]");
}

static inline void lockstep_put_saved(void *content, void (*drop)(void *content)) {
    struct lockstep_saved *saved =
        (struct lockstep_saved *)lockstep_allocate(1, sizeof *saved);
    *saved = (struct lockstep_saved){content, drop};
    lockstep_put_integer("saved", lockstep_number(&lockstep.saved, saved));
}

/* Anything else, as JSON. */
static inline void lockstep_put_json(const char *name, const char *text) {
    lockstep_add_name(name);
    lockstep_add(text);
}

/* --- messages ------------------------------------------------------------------------*/

/* An object of JSON without its braces, in one line, behind a comma unless empty. */
static inline void lockstep_add_inside(const char *object) {
    const char *begin = strchr(object, '{'), *end = strrchr(object, '}');
    if (!begin || !end || end < begin)
        lockstep_die("what a driver declares is not an object of JSON");
    char *inside = (char *)lockstep_borrow((size_t)(end - begin) + 1, 1);
    memcpy(inside, begin + 1, (size_t)(end - begin) - 1);
    for (char *at = inside; (at = strpbrk(at, "\r\n"));) *at = ' ';
    if (inside[strspn(inside, " \t")]) lockstep_add(",");
    lockstep_add(inside);
}

static inline void lockstep_add_kind(const struct lockstep_kind *kind) {
    lockstep_add_text(kind->kind);
    lockstep_add(":{");
    size_t begin = lockstep.length;
    if (!strstr(kind->declares, "\"operations\"")) {
        lockstep_add("\"operations\":[");
        for (const struct lockstep_operation *each = kind->operations; each->name; each++) {
            if (each != kind->operations) lockstep_add(",");
            lockstep_add_text(each->name);
        }
        lockstep_add("]");
    }
    lockstep_add_inside(kind->declares);
    if (lockstep.answer[begin] == ',') lockstep.answer[begin] = ' ';
    lockstep_add("}");
}

static inline void lockstep_hello(void) {
    const struct lockstep_kind *kinds = lockstep.driver->kinds;
    lockstep_put_integer("protocol", 1);
    lockstep_add_inside(lockstep.driver->declares);
    lockstep_add_name("contracts");
    lockstep_add("{");
    for (const struct lockstep_kind *first = kinds; first->kind; first++) {
        bool is_told = false; /* with an earlier kind */
        for (const struct lockstep_kind *each = kinds; each < first; each++)
            is_told |= !strcmp(each->contract, first->contract);
        if (is_told) continue;
        if (first != kinds) lockstep_add(",");
        lockstep_add_text(first->contract);
        lockstep_add(":{");
        for (const struct lockstep_kind *each = first; each->kind; each++)
            if (!strcmp(each->contract, first->contract)) {
                if (each != first) lockstep_add(",");
                lockstep_add_kind(each);
            }
        lockstep_add("}");
    }
    lockstep_add("}");
}

static inline void lockstep_open(void) {
    const struct lockstep_value *config = lockstep_get("config");
    lockstep.message = (uint32_t)(config - lockstep.values);
    const char *name = lockstep_get_text("kind");
    for (lockstep.kind = lockstep.driver->kinds; lockstep.kind->kind; lockstep.kind++)
        if (!strcmp(lockstep.kind->kind, name)) {
            lockstep_put_cache(lockstep.kind->open());
            return;
        }
    lockstep_refuse("missing", "this driver has no kind %s", name);
}

static inline void lockstep_drop_cache_and_parts(int number) {
    for (int part = 0; part < lockstep.caches.count; part++) {
        struct lockstep_cache *cache = (struct lockstep_cache *)lockstep.caches.items[part];
        if (cache && cache->owner == number) lockstep_drop_cache(part);
    }
    lockstep_drop_cache(number);
}

/* Nobody will name these again. */
static inline void lockstep_drop(const char *name, const struct lockstep_table *table,
                                 void (*drop)(int)) {
    if (!lockstep_find(lockstep.message, name)) return;
    struct lockstep_integers numbers = lockstep_get_integers(name);
    for (int place = 0; place < numbers.count; place++) {
        lockstep_look_up(table, numbers.items[place], name);
        drop((int)numbers.items[place]);
    }
}

static inline void lockstep_operate(const char *name) {
    struct lockstep_cache *cache = (struct lockstep_cache *)lockstep_look_up(
        &lockstep.caches, lockstep_get_integer("cache"), "cache");
    lockstep.kind = cache->kind;
    lockstep.number = (int)lockstep_get_integer("cache");
    for (const struct lockstep_operation *each = cache->kind->operations; each->name;
         each++)
        if (!strcmp(each->name, name) && each->run) {
            each->run(cache->content);
            return;
        }
    lockstep_refuse("missing", "%s is not written for %s", name, cache->kind->kind);
}

static inline void lockstep_answer_line(char *line) {
    lockstep.at = line;
    lockstep.value_count = 0;
    lockstep_make_value(LOCKSTEP_NULL);
    lockstep.message = lockstep_read_value(0);
    lockstep_skip();
    if (*lockstep.at || lockstep.values[lockstep.message].type != LOCKSTEP_OBJECT)
        lockstep_reject();
    long id = lockstep_get_integer("id");
    lockstep.length = 0;
    lockstep_add("{\"id\":");
    lockstep_add_integer(id);
    lockstep.begin = lockstep.length;
    const char *name = lockstep_get_text("op");
    if (!strcmp(name, "hello")) lockstep_hello();
    else if (!strcmp(name, "open")) lockstep_open();
    else if (!strcmp(name, "drop")) {
        lockstep_drop("caches", &lockstep.caches, lockstep_drop_cache_and_parts);
        lockstep_drop("snapshots", &lockstep.snapshots, lockstep_drop_snapshot);
        lockstep_drop("saved", &lockstep.saved, lockstep_drop_saved);
    } else lockstep_operate(name);
}

static inline void lockstep_drop_all(struct lockstep_table *table, void (*drop)(int)) {
    for (int number = 0; number < table->count; number++)
        if (table->items[number]) drop(number);
    free(table->items);
}

static inline void lockstep_write(int output) {
    for (size_t place = 0; place < lockstep.length;) {
        ssize_t count = write(output, lockstep.answer + place, lockstep.length - place);
        if (count < 0 && errno != EINTR) lockstep_die("an answer cannot be written");
        if (count > 0) place += (size_t)count;
    }
}

/* NULL at the end of the input. The last line may end without a newline. */
static inline char *lockstep_read_line(void) {
    int letter = getchar();
    if (letter == EOF) return NULL;
    size_t length = 0;
    for (;; letter = getchar()) {
        if (length == lockstep.line_room) {
            lockstep.line_room = length ? 2 * length : 4096;
            lockstep.line = (char *)lockstep_grow(lockstep.line, lockstep.line_room, 1);
        }
        if (letter == EOF || letter == '\n') break;
        lockstep.line[length++] = (char)letter;
    }
    lockstep.line[length] = 0;
    return lockstep.line;
}

/* Answers line by line until the input ends. A line without an id is answered as 0. What
 * else is printed goes to the standard error. */
static inline int lockstep_run(const struct lockstep_driver *driver) {
    static int output;
    output = dup(1);
    dup2(2, 1);
    lockstep.driver = driver;
    for (char *line; (line = lockstep_read_line());) {
        lockstep.length = 0;
        lockstep_add("{\"id\":0");
        lockstep.begin = lockstep.length;
        if (!setjmp(lockstep.refused)) lockstep_answer_line(line);
        lockstep_add("}\n");
        lockstep_write(output);
        lockstep_return();
    }
    free(lockstep.line);
    lockstep_drop_all(&lockstep.caches, lockstep_drop_cache);
    lockstep_drop_all(&lockstep.snapshots, lockstep_drop_snapshot);
    lockstep_drop_all(&lockstep.saved, lockstep_drop_saved);
    free(lockstep.values);
    free(lockstep.answer);
    return 0;
}

#endif
