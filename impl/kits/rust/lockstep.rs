// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors

//! A kit for Lockstep drivers in Rust, to be copied and used as a module.
//!
//! It reads messages, writes answers, numbers caches and snapshots, and refuses what it
//! cannot answer. You write caches: a function that opens one from the config, and a
//! function for each operation, which gets fields of the message and puts fields of the
//! answer. Return a `Refusal` before you change anything. Print with `eprintln!`: the
//! standard output is for answers alone.

#![allow(dead_code)] // no driver needs all of it

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, Write};
use std::rc::Rc;

/// Numbers in row-major order.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Vec<i64>,
    pub data: Vec<f32>,
}

/// The largest size of an axis: a list of so many tokens fits in memory, even if V has no
/// numbers that would bound it.
const LARGEST: i64 = 1 << 24;

/// K or V of one token: [heads * dim].
pub type Token = Vec<f32>;

/// The positions [begin, end) of a cache.
pub struct Snapshot<T> {
    pub begin: i64,
    pub end: i64,
    pub content: T,
}

/// An error in the place of an answer: "usage" if the call breaks a rule, or another of
/// the README of drivers. The call must have changed nothing.
#[derive(Debug)]
pub struct Refusal {
    pub error: String,
    pub message: String,
}

impl Refusal {
    pub fn new(error: &str, message: impl Into<String>) -> Refusal {
        Refusal {
            error: error.to_string(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}: {}", self.error, self.message)
    }
}

impl Error for Refusal {}

pub type Answered<T> = Result<T, Refusal>;

fn fail<T>(message: impl Into<String>) -> Answered<T> {
    Err(Refusal::new("failed", message))
}

// --- reading JSON ----------------------------------------------------------------------

#[derive(Debug)]
enum Value<'a> {
    Null,
    Boolean(bool),
    Number(&'a str),
    Text(String),
    List(Vec<Value<'a>>),
    Object(Vec<(String, Value<'a>)>),
}

const DEEPEST: usize = 64; // lists in lists

struct Parser<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn parse(line: &'a str) -> Answered<Value<'a>> {
        let mut parser = Parser { line, at: 0 };
        let value = parser.read(0)?;
        parser.skip();
        match value {
            Value::Object(_) if parser.at == line.len() => Ok(value),
            _ => parser.reject(),
        }
    }

    fn reject<T>(&self) -> Answered<T> {
        fail(format!(
            "the line is not JSON of a message: byte {}",
            self.at
        ))
    }

    fn peek(&self) -> u8 {
        self.line.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn skip(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
    }

    fn expect(&mut self, wanted: u8) -> Answered<()> {
        self.skip();
        if self.peek() != wanted {
            return self.reject();
        }
        self.at += 1;
        Ok(())
    }

    fn accept(&mut self, word: &str) -> bool {
        let found = self.line.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn read_text(&mut self) -> Answered<String> {
        let mut text = String::new();
        self.expect(b'"')?;
        loop {
            let rest = &self.line[self.at..];
            let end = match rest.find(['"', '\\']) {
                Some(end) => end,
                None => return self.reject(),
            };
            text += &rest[..end];
            self.at += end + 1;
            if rest.as_bytes()[end] == b'"' {
                return Ok(text);
            }
            text.push(self.read_escape()?);
        }
    }

    /// What stands behind a backslash.
    fn read_escape(&mut self) -> Answered<char> {
        let letter = self.peek();
        self.at += 1;
        let mut code = match letter {
            b'"' | b'\\' | b'/' => letter as u32,
            b'b' => 8,
            b'f' => 12,
            b'n' => 10,
            b'r' => 13,
            b't' => 9,
            b'u' => self.read_unit()?,
            _ => return self.reject(),
        };
        if code >> 10 == 0x36 && self.accept("\\u") {
            let low = self.read_unit()?.wrapping_sub(0xdc00); // of a surrogate pair
            code = if low < 0x400 {
                0x10000 + ((code & 0x3ff) << 10) + low
            } else {
                code
            };
        }
        char::from_u32(code).map_or_else(|| self.reject(), Ok)
    }

    fn read_unit(&mut self) -> Answered<u32> {
        let digits = self
            .line
            .as_bytes()
            .get(self.at..self.at + 4)
            .unwrap_or(b"");
        let is_hex = digits.len() == 4 && digits.iter().all(u8::is_ascii_hexdigit);
        if !is_hex {
            return self.reject();
        }
        self.at += 4;
        let text = &self.line[self.at - 4..self.at];
        u32::from_str_radix(text, 16).or_else(|_| self.reject())
    }

    fn read(&mut self, depth: usize) -> Answered<Value<'a>> {
        self.skip();
        match self.peek() {
            _ if depth > DEEPEST => self.reject(),
            b'[' => self.read_list(depth),
            b'{' => self.read_object(depth),
            b'"' => Ok(Value::Text(self.read_text()?)),
            _ if self.accept("null") => Ok(Value::Null),
            _ if self.accept("true") => Ok(Value::Boolean(true)),
            _ if self.accept("false") => Ok(Value::Boolean(false)),
            _ => self.read_number(),
        }
    }

    fn read_list(&mut self, depth: usize) -> Answered<Value<'a>> {
        let mut items = Vec::new();
        self.at += 1;
        self.skip();
        while self.peek() != b']' {
            if !items.is_empty() {
                self.expect(b',')?;
            }
            items.push(self.read(depth + 1)?);
            self.skip();
        }
        self.at += 1;
        Ok(Value::List(items))
    }

    fn read_object(&mut self, depth: usize) -> Answered<Value<'a>> {
        let mut items = Vec::new();
        self.at += 1;
        self.skip();
        while self.peek() != b'}' {
            if !items.is_empty() {
                self.expect(b',')?;
            }
            let name = self.read_text()?;
            self.expect(b':')?;
            items.push((name, self.read(depth + 1)?));
            self.skip();
        }
        self.at += 1;
        Ok(Value::Object(items))
    }

    fn read_number(&mut self) -> Answered<Value<'a>> {
        let begin = self.at;
        while b"+-.0123456789eE".contains(&self.peek()) {
            self.at += 1;
        }
        let text = &self.line[begin..self.at];
        match text.parse::<f64>() {
            Ok(_) => Ok(Value::Number(text)),
            Err(_) => self.reject(),
        }
    }
}

// --- what is numbered ------------------------------------------------------------------

struct Table<T>(BTreeMap<i64, Rc<T>>);

impl<T> Table<T> {
    fn add(&mut self, item: T) -> i64 {
        let number = (0..).find(|each| !self.0.contains_key(each)).unwrap_or(0);
        self.0.insert(number, Rc::new(item));
        number
    }

    fn get(&self, number: i64, name: &str) -> Answered<Rc<T>> {
        match self.0.get(&number) {
            Some(item) => Ok(item.clone()),
            None => fail(format!("{name}: there is no number {number}")),
        }
    }

    fn drop(&mut self, number: i64, name: &str) -> Answered<()> {
        self.get(number, name)?;
        self.0.remove(&number);
        Ok(())
    }
}

struct Cache {
    kind: usize,        // an index into the kinds of the driver
    owner: Option<i64>, // the cache that it is a part of
    content: RefCell<Box<dyn Any>>,
}

struct Tables {
    caches: Table<Cache>,
    snapshots: Table<Snapshot<Box<dyn Any>>>,
    saved: Table<Box<dyn Any>>,
}

// --- the fields of a message, or of a config -------------------------------------------

pub struct Message<'a> {
    fields: &'a [(String, Value<'a>)],
    tables: &'a RefCell<Tables>,
}

impl<'a> Message<'a> {
    fn of(value: &'a Value<'a>, tables: &'a RefCell<Tables>, what: &str) -> Answered<Message<'a>> {
        match value {
            Value::Object(fields) => Ok(Message { fields, tables }),
            _ => fail(format!("{what} is not an object")),
        }
    }

    fn find(&self, name: &str) -> Option<&'a Value<'a>> {
        self.fields
            .iter()
            .find(|(each, _)| each == name)
            .map(|(_, value)| value)
    }

    fn get(&self, name: &str) -> Answered<&'a Value<'a>> {
        match self.find(name) {
            Some(value) => Ok(value),
            None => fail(format!("the message has no {name}")),
        }
    }

    pub fn is_null(&self, name: &str) -> Answered<bool> {
        Ok(matches!(self.get(name)?, Value::Null))
    }

    /// Takes 1.0 and 1e0 as well.
    pub fn get_integer(&self, name: &str) -> Answered<i64> {
        match to_integer(self.get(name)?) {
            Some(integer) => Ok(integer),
            None => fail(format!("{name} is not an integer")),
        }
    }

    pub fn get_boolean(&self, name: &str) -> Answered<bool> {
        match self.get(name)? {
            Value::Boolean(truth) => Ok(*truth),
            _ => fail(format!("{name} is not true or false")),
        }
    }

    pub fn get_text(&self, name: &str) -> Answered<&'a str> {
        match self.get(name)? {
            Value::Text(text) => Ok(text),
            _ => fail(format!("{name} is not a text")),
        }
    }

    /// Texts, and None for null.
    pub fn get_texts(&self, name: &str) -> Answered<Vec<Option<&'a str>>> {
        let to_text = |item: &'a Value<'a>| match item {
            Value::Text(text) => Ok(Some(text.as_str())),
            Value::Null => Ok(None),
            _ => fail(format!("{name} has an item that is not a text")),
        };
        to_list(self.get(name)?, name)?
            .iter()
            .map(to_text)
            .collect()
    }

    /// An item that is not an integer is a mistake of usage.
    pub fn get_integers(&self, name: &str) -> Answered<Vec<i64>> {
        let refuse = || {
            let words = format!("{name} has an item that is not an integer");
            Refusal::new("usage", words)
        };
        let items = to_list(self.get(name)?, name)?;
        items
            .iter()
            .map(|item| to_integer(item).ok_or_else(refuse))
            .collect()
    }

    pub fn get_object(&self, name: &str) -> Answered<Message<'a>> {
        Message::of(self.get(name)?, self.tables, name)
    }

    pub fn get_objects(&self, name: &str) -> Answered<Vec<Message<'a>>> {
        let items = to_list(self.get(name)?, name)?;
        items
            .iter()
            .map(|item| Message::of(item, self.tables, name))
            .collect()
    }

    pub fn get_array(&self, name: &str) -> Answered<Array> {
        let array = self.get_object(name)?;
        let shape = array.get_integers("shape")?;
        let items = to_list(array.get("data")?, name)?;
        let all = shape
            .iter()
            .try_fold(1i64, |count, size| count.checked_mul(*size));
        if shape.iter().any(|size| !(0..=LARGEST).contains(size)) {
            return fail(format!("{name}: a size is not in [0, {LARGEST}]"));
        }
        if all != Some(items.len() as i64) {
            return fail(format!("{name} has not as many numbers as its shape says"));
        }
        let data: Answered<Vec<f32>> = items.iter().map(|each| to_float(each, name)).collect();
        Ok(Array { shape, data: data? })
    }

    /// K or V; any shape but [1, heads, tokens, dim] is a mistake of usage.
    pub fn get_tokens(&self, name: &str, heads: usize, dim: usize) -> Answered<Vec<Token>> {
        let Array { shape, data } = self.get_array(name)?;
        if shape.len() != 4 || [shape[0], shape[1], shape[3]] != [1, heads as i64, dim as i64] {
            let words = format!("{name}: shape {shape:?}, not [1, {heads}, tokens, {dim}]");
            return Err(Refusal::new("usage", words));
        }
        let mut tokens = vec![Token::with_capacity(heads * dim); shape[2] as usize];
        let mut rest = &data[..];
        for _ in 0..heads {
            for token in &mut tokens {
                let (numbers, more) = rest.split_at(dim);
                token.extend(numbers);
                rest = more;
            }
        }
        Ok(tokens)
    }

    /// A copy; None if the field is null. Take an `Rc` as content if it is large.
    pub fn get_snapshot<T: Clone + 'static>(&self, name: &str) -> Answered<Option<Snapshot<T>>> {
        if self.is_null(name)? {
            return Ok(None);
        }
        let number = self.get_integer(name)?;
        let snapshot = self.tables.borrow().snapshots.get(number, name)?;
        match snapshot.content.downcast_ref::<T>() {
            Some(content) => Ok(Some(Snapshot {
                begin: snapshot.begin,
                end: snapshot.end,
                content: content.clone(),
            })),
            None => fail(format!("{name} is a snapshot of another kind")),
        }
    }

    /// The snapshot is used up: frees its number.
    pub fn use_snapshot(&self, name: &str) -> Answered<()> {
        if self.is_null(name)? {
            return Ok(());
        }
        let number = self.get_integer(name)?;
        self.tables.borrow_mut().snapshots.drop(number, name)
    }

    pub fn get_saved<T: Clone + 'static>(&self, name: &str) -> Answered<T> {
        let saved = self
            .tables
            .borrow()
            .saved
            .get(self.get_integer(name)?, name)?;
        match saved.downcast_ref::<T>() {
            Some(content) => Ok(content.clone()),
            None => fail(format!("{name} is of another kind")),
        }
    }

    /// Those caches are used up: frees their numbers.
    pub fn use_caches<T: 'static>(&self, name: &str) -> Answered<Vec<T>> {
        let mut contents = vec![];
        for number in self.get_integers(name)? {
            let cache = self.tables.borrow().caches.get(number, name)?;
            self.tables.borrow_mut().caches.drop(number, name)?;
            let content = Rc::try_unwrap(cache).map(|cache| cache.content.into_inner());
            match content.map(|content| content.downcast::<T>()) {
                Ok(Ok(content)) => contents.push(*content),
                _ => return fail(format!("{name} has a cache that cannot be used up")),
            }
        }
        Ok(contents)
    }
}

fn to_integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(text) => text
            .parse::<f64>()
            .ok()
            .filter(|number| number.fract() == 0.0 && number.abs() < (1i64 << 53) as f64)
            .map(|number| number as i64),
        _ => None,
    }
}

fn to_list<'a>(value: &'a Value<'a>, name: &str) -> Answered<&'a [Value<'a>]> {
    match value {
        Value::List(items) => Ok(items),
        _ => fail(format!("{name} is not a list")),
    }
}

fn to_float(value: &Value, name: &str) -> Answered<f32> {
    match value {
        Value::Number(text) => Ok(text.parse().unwrap_or(f32::NAN)),
        Value::Null => Ok(f32::NAN),
        Value::Text(text) if text == "nan" => Ok(f32::NAN),
        Value::Text(text) if text == "inf" => Ok(f32::INFINITY),
        Value::Text(text) if text == "-inf" => Ok(f32::NEG_INFINITY),
        _ => fail(format!("{name} has an item that is not a number")),
    }
}

// --- the fields of an answer -----------------------------------------------------------

pub struct Answer<'a> {
    kind: usize,
    number: Option<i64>, // of the cache that was asked
    kinds: &'a [Kind],
    tables: &'a RefCell<Tables>,
    text: String,
}

impl Answer<'_> {
    /// Anything, as JSON.
    pub fn put_json(&mut self, name: &str, json: &str) {
        self.text += &format!(",{}:{json}", quote(name));
    }

    pub fn put_null(&mut self, name: &str) {
        self.put_json(name, "null");
    }

    pub fn put_text(&mut self, name: &str, text: &str) {
        self.put_json(name, &quote(text));
    }

    pub fn put_integer(&mut self, name: &str, number: i64) {
        self.put_json(name, &number.to_string());
    }

    pub fn put_boolean(&mut self, name: &str, truth: bool) {
        self.put_json(name, if truth { "true" } else { "false" });
    }

    pub fn put_integers(&mut self, name: &str, integers: &[i64]) {
        self.put_json(name, &join(integers.iter().map(i64::to_string)));
    }

    pub fn put_array(&mut self, name: &str, array: &Array) {
        self.put_json(name, &format_array(array));
    }

    /// K or V as [1, heads, tokens, dim].
    pub fn put_tokens(&mut self, name: &str, heads: usize, dim: usize, tokens: &[Token]) {
        let mut data = Vec::with_capacity(heads * dim * tokens.len());
        for head in 0..heads {
            for token in tokens {
                data.extend(&token[head * dim..(head + 1) * dim]);
            }
        }
        let shape = vec![1, heads as i64, tokens.len() as i64, dim as i64];
        self.put_array(name, &Array { shape, data });
    }

    /// What each row sees of each column; `additive`: as 0 and -inf.
    pub fn put_mask(&mut self, rows: usize, columns: usize, seen: &[bool], additive: bool) {
        let (yes, no) = if additive {
            ("0", "\"-inf\"")
        } else {
            ("1", "0")
        };
        let data = join(
            seen.iter()
                .map(|each| if *each { yes } else { no }.to_string()),
        );
        self.put_data("mask", &[rows as i64, columns as i64], &data);
    }

    /// A new cache, of the kind of the one that was asked.
    pub fn put_cache<T: 'static>(&mut self, content: T) {
        let content: Box<dyn Any> = Box::new(content);
        self.add_cache(content);
    }

    /// Numbers a cache of a kind of the driver that is in the one that was asked: below a
    /// prefix cache. It is dropped with that. Remember the number for the next answer.
    pub fn number_part<T: 'static>(&mut self, kind: &str, content: T) -> Answered<i64> {
        let found = self.kinds.iter().position(|each| each.kind == kind);
        let cache = Cache {
            kind: found.map_or_else(|| fail(format!("there is no kind {kind}")), Ok)?,
            owner: self.number,
            content: RefCell::new(Box::new(content)),
        };
        Ok(self.tables.borrow_mut().caches.add(cache))
    }

    pub fn put_snapshot<T: 'static>(&mut self, name: &str, snapshot: Option<Snapshot<T>>) {
        let text = self.number_snapshot(snapshot);
        self.put_json(name, &text);
    }

    pub fn put_snapshots<T: 'static>(&mut self, name: &str, snapshots: Vec<Option<Snapshot<T>>>) {
        let texts: Vec<String> = snapshots
            .into_iter()
            .map(|each| self.number_snapshot(each))
            .collect();
        self.put_json(name, &join(texts.into_iter()));
    }

    pub fn put_saved<T: 'static>(&mut self, content: T) {
        let number = self.tables.borrow_mut().saved.add(Box::new(content));
        self.put_integer("saved", number);
    }

    fn add_cache(&mut self, content: Box<dyn Any>) {
        let cache = Cache {
            kind: self.kind,
            owner: None,
            content: RefCell::new(content),
        };
        let number = self.tables.borrow_mut().caches.add(cache);
        self.put_integer("cache", number);
    }

    fn put_data(&mut self, name: &str, shape: &[i64], data: &str) {
        let sizes = join(shape.iter().map(i64::to_string));
        self.put_json(name, &format!("{{\"shape\":{sizes},\"data\":{data}}}"));
    }

    fn number_snapshot<T: 'static>(&mut self, snapshot: Option<Snapshot<T>>) -> String {
        let Snapshot {
            begin,
            end,
            content,
        } = match snapshot {
            Some(snapshot) => snapshot,
            None => return "null".to_string(),
        };
        let content: Box<dyn Any> = Box::new(content);
        let kept = Snapshot {
            begin,
            end,
            content,
        };
        let number = self.tables.borrow_mut().snapshots.add(kept);
        format!("{{\"number\":{number},\"begin\":{begin},\"end\":{end}}}")
    }
}

/// A text in quotes; what would need more than a backslash becomes a question mark.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        if letter == '"' || letter == '\\' {
            quoted.push('\\');
        }
        quoted.push(if (' '..='~').contains(&letter) {
            letter
        } else {
            '?'
        });
    }
    quoted + "\""
}

fn join(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<String>>().join(","))
}

/// An array as JSON, for `put_json`.
pub fn format_array(array: &Array) -> String {
    let data = join(array.data.iter().map(|number| format_number(*number)));
    let shape = join(array.shape.iter().map(i64::to_string));
    format!("{{\"shape\":{shape},\"data\":{data}}}")
}

/// As many digits as tell any two floats apart.
fn format_number(number: f32) -> String {
    match number {
        _ if number.is_nan() => "null".to_string(),
        _ if number.is_finite() => format!("{number:?}"),
        _ => (if number > 0.0 { "\"inf\"" } else { "\"-inf\"" }).to_string(),
    }
}

// --- what a driver declares ------------------------------------------------------------
// `declares` is an object of JSON: all that the README of drivers lists beside what the
// kit adds.

type Open = Box<dyn Fn(&Message) -> Answered<Box<dyn Any>>>;
type Run = Box<dyn Fn(&mut dyn Any, &Message, &mut Answer) -> Answered<()>>;

/// An operation of caches C; None: declared, but not written yet.
pub type Operation<C> = Option<fn(&mut C, &Message, &mut Answer) -> Answered<()>>;

pub struct Kind {
    contract: String,
    kind: String,
    declares: String,
    open: Open,
    operations: Vec<(String, Option<Run>)>,
}

impl Kind {
    /// contract: empty for a kind that is not declared, of caches in others. declares:
    /// {"refuses": true, "config": {…}}; the kit adds "operations", unless they are there:
    /// those that programs have. open: gets the config, and may capture what the caches need, such as a handle of the engine.
    pub fn new<C: 'static>(
        contract: &str,
        kind: &str,
        declares: &str,
        open: impl Fn(&Message) -> Answered<C> + 'static,
        operations: &[(&str, Operation<C>)],
    ) -> Kind {
        let wrap = |run: fn(&mut C, &Message, &mut Answer) -> Answered<()>| -> Run {
            Box::new(
                move |cache, message, answer| match cache.downcast_mut::<C>() {
                    Some(cache) => run(cache, message, answer),
                    None => fail("the cache is of another type"),
                },
            )
        };
        Kind {
            contract: contract.to_string(),
            kind: kind.to_string(),
            declares: declares.to_string(),
            open: Box::new(move |config| Ok(Box::new(open(config)?) as Box<dyn Any>)),
            operations: operations
                .iter()
                .map(|(name, run)| (name.to_string(), run.map(wrap)))
                .collect(),
        }
    }
}

pub struct Driver {
    declares: String,
    kinds: Vec<Kind>,
    tables: RefCell<Tables>,
}

impl Driver {
    /// declares: {"name": "…", …}; the kit adds "protocol" and "contracts".
    pub fn new(declares: &str, kinds: Vec<Kind>) -> Driver {
        let tables = Tables {
            caches: Table(BTreeMap::new()),
            snapshots: Table(BTreeMap::new()),
            saved: Table(BTreeMap::new()),
        };
        Driver {
            declares: declares.to_string(),
            kinds,
            tables: RefCell::new(tables),
        }
    }

    /// Answers line by line until the input ends. A line without an id is answered as 0.
    pub fn run(&self) -> io::Result<()> {
        for line in io::stdin().lock().split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            let mut id = 0;
            let text = self.answer_line(&line, &mut id).unwrap_or_else(|refusal| {
                let (error, message) = (quote(&refusal.error), quote(&refusal.message));
                format!(",\"error\":{error},\"message\":{message}")
            });
            let mut output = io::stdout().lock(); // no longer: other threads may print
            writeln!(output, "{{\"id\":{id}{text}}}")?;
            output.flush()?;
        }
        Ok(())
    }

    fn answer_line(&self, line: &str, id: &mut i64) -> Answered<String> {
        let value = Parser::parse(line)?;
        let message = Message::of(&value, &self.tables, "the message")?;
        *id = message.get_integer("id")?;
        match message.get_text("op")? {
            "hello" => Ok(self.hello()),
            "open" => self.open(&message),
            "drop" => self.drop(&message),
            operation => self.operate(operation, &message),
        }
    }

    fn hello(&self) -> String {
        let mut contracts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for kind in self.kinds.iter().filter(|kind| !kind.contract.is_empty()) {
            let names = join(kind.operations.iter().map(|(name, _)| quote(name)));
            let mut text = open_object(&kind.declares);
            if kind.declares.contains("\"operations\"") {
                text.remove(0); // the comma
            } else {
                text = format!("\"operations\":{names}{text}");
            }
            let text = format!("{}:{{{text}}}", quote(&kind.kind));
            contracts.entry(&kind.contract).or_default().push(text);
        }
        let texts: Vec<String> = contracts
            .iter()
            .map(|(contract, kinds)| format!("{}:{{{}}}", quote(contract), kinds.join(",")))
            .collect();
        let rest = open_object(&self.declares);
        format!(
            ",\"protocol\":1{rest},\"contracts\":{{{}}}",
            texts.join(",")
        )
    }

    fn open(&self, message: &Message) -> Answered<String> {
        let config = message.get_object("config")?;
        let name = config.get_text("kind")?;
        let found = self.kinds.iter().position(|each| each.kind == name);
        let missing = || Refusal::new("missing", format!("this driver has no kind {name}"));
        let kind = found.ok_or_else(missing)?;
        let content = (self.kinds[kind].open)(&config)?;
        let mut answer = Answer {
            kind,
            number: None,
            kinds: &self.kinds,
            tables: &self.tables,
            text: String::new(),
        };
        answer.add_cache(content);
        Ok(answer.text)
    }

    /// Nobody will name these again.
    fn drop(&self, message: &Message) -> Answered<String> {
        let mut tables = self.tables.borrow_mut();
        let list = |name| {
            message
                .find(name)
                .map_or(Ok(vec![]), |_| message.get_integers(name))
        };
        for number in list("caches")? {
            tables.caches.drop(number, "caches")?;
            tables
                .caches
                .0
                .retain(|_, cache| cache.owner != Some(number));
        }
        for number in list("snapshots")? {
            tables.snapshots.drop(number, "snapshots")?;
        }
        for number in list("saved")? {
            tables.saved.drop(number, "saved")?;
        }
        Ok(String::new())
    }

    fn operate(&self, operation: &str, message: &Message) -> Answered<String> {
        let number = message.get_integer("cache")?;
        let cache = self.tables.borrow().caches.get(number, "cache")?;
        let kind = &self.kinds[cache.kind];
        let found = kind.operations.iter().find(|(name, _)| name == operation);
        let run = match found {
            Some((_, Some(run))) => run,
            _ => {
                let words = format!("{operation} is not written for {}", kind.kind);
                return Err(Refusal::new("missing", words));
            }
        };
        let mut answer = Answer {
            kind: cache.kind,
            number: Some(number),
            kinds: &self.kinds,
            tables: &self.tables,
            text: String::new(),
        };
        run(cache.content.borrow_mut().as_mut(), message, &mut answer)?;
        Ok(answer.text)
    }
}

/// The rest of an object after its first field, on one line.
fn open_object(object: &str) -> String {
    let (begin, end) = match (object.find('{'), object.rfind('}')) {
        (Some(begin), Some(end)) if begin < end => (begin + 1, end),
        _ => panic!("lockstep.rs: not an object of JSON: {object}"),
    };
    let inside = object[begin..end].replace(['\n', '\r'], " ");
    if inside.trim().is_empty() {
        String::new()
    } else {
        format!(",{inside}")
    }
}
