// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors

//! An example for the kit in Rust: kv and rotating of the layer contract, causal of the
//! unified contract. reference/kv.py, rotating.py and causal.py are what the operations
//! mean.

mod lockstep;

use lockstep::{Answer, Answered, Driver, Kind, Message, Refusal, Snapshot, Token};
use std::collections::BTreeSet;

fn usage<T>(message: impl Into<String>) -> Answered<T> {
    Err(Refusal::new("usage", message))
}

// --- kv and rotating: one sequence -----------------------------------------------------

#[derive(Clone, Default)]
struct Content {
    keys: Vec<Token>,
    values: Vec<Token>,
}

/// The tokens at [start, offset). With a window, the last `window` tokens stay after each
/// update.
#[derive(Clone)]
struct Layer {
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    window: Option<i64>,
    start: i64,
    content: Content,
}

impl Layer {
    fn open(config: &Message) -> Answered<Layer> {
        let has_window = !config.is_null("window")?;
        Ok(Layer {
            heads: config.get_integer("heads")? as usize,
            key_dim: config.get_integer("key_dim")? as usize,
            value_dim: config.get_integer("value_dim")? as usize,
            window: if has_window {
                Some(config.get_integer("window")?)
            } else {
                None
            },
            start: 0,
            content: Content::default(),
        })
    }

    fn update(&mut self, message: &Message, answer: &mut Answer) -> Answered<()> {
        let keys = message.get_tokens("keys", self.heads, self.key_dim)?;
        let values = message.get_tokens("values", self.heads, self.value_dim)?;
        let (rows, first) = (message.get_integer("rows")?, self.offset());
        if keys.len() != values.len() {
            return usage(format!("K of {} tokens, V of {}", keys.len(), values.len()));
        }
        if rows < keys.len() as i64 {
            return usage(format!("{rows} rows for {} tokens", keys.len()));
        }
        self.append(Content { keys, values });
        answer.put_integer("offset", self.offset());
        self.put_content(answer);
        self.put_mask(answer, first, rows);
        let more = self.count() - self.window.unwrap_or(self.count());
        if more > 0 {
            self.start += more;
            self.content.keys.drain(..more as usize);
            self.content.values.drain(..more as usize);
        }
        Ok(())
    }

    fn view(&mut self, _: &Message, answer: &mut Answer) -> Answered<()> {
        if self.offset() > 0 {
            self.put_content(answer);
        } else {
            answer.put_null("keys");
            answer.put_null("values");
        }
        Ok(())
    }

    fn size(&mut self, _: &Message, answer: &mut Answer) -> Answered<()> {
        answer.put_integer("size", self.count());
        Ok(())
    }

    fn trim(&mut self, message: &Message, answer: &mut Answer) -> Answered<()> {
        let count = message.get_integer("count")?;
        if count < 0 {
            return usage(format!("trim: count {count} is negative"));
        }
        // Once a token has slid out, an earlier window is lost.
        let trimmed = if self.start > 0 {
            0
        } else {
            count.min(self.offset())
        };
        self.keep_below(self.offset() - trimmed);
        answer.put_integer("trimmed", trimmed);
        answer.put_integer("offset", self.offset());
        Ok(())
    }

    fn clone_cache(&mut self, _: &Message, answer: &mut Answer) -> Answered<()> {
        answer.put_cache(self.clone());
        Ok(())
    }

    fn free(&mut self, _: &Message, answer: &mut Answer) -> Answered<()> {
        self.content = Content::default();
        self.start = 0;
        answer.put_integer("offset", 0);
        Ok(())
    }

    // --- of kv alone

    fn snapshot(&mut self, message: &Message, answer: &mut Answer) -> Answered<()> {
        let (begin, end) = (message.get_integer("begin")?.max(0), self.offset());
        let snapshot = (begin < end).then(|| {
            let keys = self.content.keys[begin as usize..].to_vec();
            let values = self.content.values[begin as usize..].to_vec();
            Snapshot {
                begin,
                end,
                content: Content { keys, values },
            }
        });
        answer.put_snapshot("snapshot", snapshot);
        Ok(())
    }

    fn restore(&mut self, message: &Message, answer: &mut Answer) -> Answered<()> {
        let snapshot = message.get_snapshot::<Content>("snapshot")?;
        let target = message.get_integer("target")?;
        let (begin, end) = match &snapshot {
            Some(snapshot) => (snapshot.begin, snapshot.end),
            None => (0, self.offset()),
        };
        let ok = 0 <= target && target <= end && self.offset() >= begin;
        if ok {
            if let Some(snapshot) = snapshot {
                self.keep_below(begin);
                self.append(snapshot.content);
            }
            self.keep_below(target);
        }
        answer.put_boolean("ok", ok);
        answer.put_integer("offset", self.offset());
        Ok(())
    }

    fn close(&mut self, message: &Message, _: &mut Answer) -> Answered<()> {
        message.use_snapshot("snapshot")
    }

    fn count(&self) -> i64 {
        self.content.keys.len() as i64
    }

    fn offset(&self) -> i64 {
        self.start + self.count()
    }

    fn append(&mut self, more: Content) {
        self.content.keys.extend(more.keys);
        self.content.values.extend(more.values);
    }

    fn keep_below(&mut self, end: i64) {
        self.content.keys.truncate((end - self.start) as usize);
        self.content.values.truncate((end - self.start) as usize);
    }

    fn put_content(&self, answer: &mut Answer) {
        answer.put_tokens("keys", self.heads, self.key_dim, &self.content.keys);
        answer.put_tokens("values", self.heads, self.value_dim, &self.content.values);
    }

    /// Rows of queries, columns of tokens; rows beyond the queries see nothing.
    fn put_mask(&self, answer: &mut Answer, first: i64, rows: i64) {
        let mut seen = Vec::new();
        for query in first..first + rows {
            for position in self.start..self.offset() {
                let is_near = self.window.map_or(true, |window| position > query - window);
                seen.push(query < self.offset() && position <= query && is_near);
            }
        }
        answer.put_mask(rows as usize, self.count() as usize, &seen, false);
    }
}

// --- causal: many sequences in one pool ------------------------------------------------

/// One token; a cell without sequences is free.
#[derive(Clone)]
struct Cell {
    position: i64,
    sequences: BTreeSet<i64>,
    keys: Vec<Token>, // of each layer
    values: Vec<Token>,
}

struct Pass {
    positions: Vec<i64>,
    sequences: Vec<i64>,
    exceptions: Vec<i64>,
    is_reserving: bool,
    places: Vec<usize>, // the cell of each row
}

struct Causal {
    layers: i64,
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    sequences: i64,
    batch: usize,
    cells: Vec<Cell>,
    pass: Option<Pass>,
}

fn check(what: &str, number: i64, count: i64) -> Answered<()> {
    if (0..count).contains(&number) {
        return Ok(());
    }
    usage(format!("{what} {number} is not in [0, {count})"))
}

fn check_all(what: &str, numbers: &[i64], count: i64) -> Answered<()> {
    numbers
        .iter()
        .try_for_each(|number| check(what, *number, count))
}

impl Causal {
    fn open(config: &Message) -> Answered<Causal> {
        let layers = config.get_integer("layers")?;
        let heads = config.get_integer("heads")? as usize;
        let key_dim = config.get_integer("key_dim")? as usize;
        let value_dim = config.get_integer("value_dim")? as usize;
        let sequences = config.get_integer("sequences")?;
        let room = (sequences * config.get_integer("capacity")?) as usize;
        let cell = Cell {
            position: 0,
            sequences: BTreeSet::new(),
            keys: vec![vec![0.0; heads * key_dim]; layers as usize],
            values: vec![vec![0.0; heads * value_dim]; layers as usize],
        };
        let batch = config.get_integer("batch")? as usize;
        let cells = vec![cell; room];
        Ok(Causal {
            layers,
            heads,
            key_dim,
            value_dim,
            sequences,
            batch,
            cells,
            pass: None,
        })
    }

    fn forward(&mut self, message: &Message, _: &mut Answer) -> Answered<()> {
        let mut pass = Pass {
            positions: message.get_integers("positions")?,
            sequences: message.get_integers("sequences")?,
            exceptions: message.get_integers("exceptions")?,
            is_reserving: message.get_boolean("reserve")?,
            places: Vec::new(),
        };
        let rows = pass.positions.len();
        self.check_batch(&pass)?;
        check_all("row", &pass.exceptions, rows as i64)?;
        check_all("row", &message.get_integers("multimodal")?, rows as i64)?;
        self.pass = None;
        let is_free = |place: &usize| self.cells[*place].sequences.is_empty();
        pass.places = (0..self.cells.len()).filter(is_free).collect();
        if !pass.is_reserving {
            if pass.places.len() < rows {
                let words = format!("{rows} tokens, and room for {}", pass.places.len());
                return Err(Refusal::new("cache-full", words));
            }
            for row in 0..rows {
                let cell = &mut self.cells[pass.places[row]];
                cell.position = pass.positions[row];
                cell.sequences = BTreeSet::from([pass.sequences[row]]);
            }
        }
        self.pass = Some(pass);
        Ok(())
    }

    fn put(&mut self, message: &Message, _: &mut Answer) -> Answered<()> {
        let layer = self.get_layer(message)?;
        let keys = message.get_tokens("keys", self.heads, self.key_dim)?;
        let values = message.get_tokens("values", self.heads, self.value_dim)?;
        let pass = self.get_pass()?;
        let (rows, is_reserving) = (pass.positions.len(), pass.is_reserving);
        if keys.len() != rows || values.len() != rows {
            return usage(format!("K or V has not {rows} tokens, as the pass has"));
        }
        let places: Vec<usize> = pass.places.iter().take(rows).copied().collect();
        if !is_reserving {
            for ((place, key), value) in places.into_iter().zip(keys).zip(values) {
                self.cells[place].keys[layer] = key;
                self.cells[place].values[layer] = value;
            }
        }
        Ok(())
    }

    fn get(&mut self, message: &Message, answer: &mut Answer) -> Answered<()> {
        let layer = self.get_layer(message)?;
        let pass = self.get_pass()?;
        let of_layer = |tokens: fn(&Cell) -> &Vec<Token>| -> Vec<Token> {
            self.cells
                .iter()
                .map(|cell| tokens(cell)[layer].clone())
                .collect()
        };
        let (keys, values) = (of_layer(|cell| &cell.keys), of_layer(|cell| &cell.values));
        let rows = pass.positions.len();
        let mut seen = Vec::new();
        for row in 0..rows {
            seen.extend(self.cells.iter().map(|cell| is_visible(pass, row, cell)));
        }
        answer.put_tokens("keys", self.heads, self.key_dim, &keys);
        answer.put_tokens("values", self.heads, self.value_dim, &values);
        answer.put_mask(rows, self.cells.len(), &seen, true);
        Ok(())
    }

    fn copy_prefix(&mut self, message: &Message, _: &mut Answer) -> Answered<()> {
        let source = message.get_integer("source")?;
        let target = message.get_integer("target")?;
        let length = message.get_integer("length")?;
        check_all("sequence", &[source, target], self.sequences)?;
        if source == target {
            return usage(format!("sequence {source} cannot be copied onto itself"));
        }
        if length < 0 {
            return usage(format!("length {length} is negative"));
        }
        self.pass = None;
        self.leave(target, 0, i64::MAX);
        for cell in &mut self.cells {
            if cell.sequences.contains(&source) && cell.position < length {
                cell.sequences.insert(target);
            }
        }
        Ok(())
    }

    fn remove(&mut self, message: &Message, _: &mut Answer) -> Answered<()> {
        let sequence = message.get_integer("sequence")?;
        let begin = message.get_integer("begin")?;
        let has_end = !message.is_null("end")?;
        let end = if has_end {
            message.get_integer("end")?
        } else {
            i64::MAX
        };
        check("sequence", sequence, self.sequences)?;
        if begin < 0 || begin > end {
            return usage(format!("begin {begin} is negative, or behind the end"));
        }
        let follows = |cell: &&Cell| cell.sequences.contains(&sequence) && cell.position >= end;
        let following: Vec<&Cell> = self.cells.iter().filter(follows).collect();
        if following.iter().any(|cell| cell.sequences.len() > 1) {
            return Err(Refusal::new("shared", "a token that would move is shared"));
        }
        if !following.is_empty() {
            return Err(Refusal::new("not-supported", "keys cannot be turned here"));
        }
        self.pass = None;
        self.leave(sequence, begin, end);
        Ok(())
    }

    fn can_resume(&mut self, message: &Message, answer: &mut Answer) -> Answered<()> {
        check("sequence", message.get_integer("sequence")?, self.sequences)?;
        let position = message.get_integer("position")?;
        if position < 0 {
            return usage(format!("position {position} is negative"));
        }
        answer.put_boolean("result", true);
        Ok(())
    }

    fn save(&mut self, _: &Message, answer: &mut Answer) -> Answered<()> {
        answer.put_saved(self.cells.clone());
        Ok(())
    }

    fn load(&mut self, message: &Message, _: &mut Answer) -> Answered<()> {
        self.cells = message.get_saved("saved")?;
        self.pass = None;
        Ok(())
    }

    fn check_batch(&self, pass: &Pass) -> Answered<()> {
        let rows = pass.positions.len();
        if rows != pass.sequences.len() {
            return usage(format!(
                "{rows} positions, {} sequences",
                pass.sequences.len()
            ));
        }
        if rows == 0 || rows > self.batch {
            return usage(format!(
                "a batch of {rows} rows; expected 1 to {}",
                self.batch
            ));
        }
        check_all("position", &pass.positions, i64::MAX)?;
        check_all("sequence", &pass.sequences, self.sequences)
    }

    fn get_pass(&self) -> Answered<&Pass> {
        match &self.pass {
            Some(pass) => Ok(pass),
            None => usage("no pass is open; forward opens one"),
        }
    }

    fn get_layer(&self, message: &Message) -> Answered<usize> {
        self.get_pass()?;
        let layer = message.get_integer("layer")?;
        check("layer", layer, self.layers)?;
        Ok(layer as usize)
    }

    /// The sequence leaves its tokens in [begin, end).
    fn leave(&mut self, sequence: i64, begin: i64, end: i64) {
        for cell in &mut self.cells {
            if (begin..end).contains(&cell.position) {
                cell.sequences.remove(&sequence);
            }
        }
    }
}

fn is_visible(pass: &Pass, row: usize, cell: &Cell) -> bool {
    let looks_ahead = pass.exceptions.contains(&(row as i64));
    !pass.is_reserving
        && cell.sequences.contains(&pass.sequences[row])
        && (cell.position <= pass.positions[row] || looks_ahead)
}

// --- what is declared ------------------------------------------------------------------

fn main() -> std::io::Result<()> {
    let layer = r#"{"refuses": true, "config": {"mask_padding": [1, 4]}}"#;
    let unified = r#"{"refuses": true, "config": {"shift": [false], "layers": [1, 2]}}"#;
    let rotating: &[(&str, lockstep::Operation<Layer>)] = &[
        ("update", Some(Layer::update)),
        ("state", Some(Layer::view)),
        ("view", Some(Layer::view)),
        ("size", Some(Layer::size)),
        ("trim", Some(Layer::trim)),
        ("clone", Some(Layer::clone_cache)),
        ("free", Some(Layer::free)),
    ];
    let snapshots: &[(&str, lockstep::Operation<Layer>)] = &[
        ("snapshot", Some(Layer::snapshot)),
        ("restore", Some(Layer::restore)),
        ("close", Some(Layer::close)),
    ];
    let causal: &[(&str, lockstep::Operation<Causal>)] = &[
        ("forward", Some(Causal::forward)),
        ("put", Some(Causal::put)),
        ("get", Some(Causal::get)),
        ("copy_prefix", Some(Causal::copy_prefix)),
        ("remove", Some(Causal::remove)),
        ("can_resume", Some(Causal::can_resume)),
        ("save", Some(Causal::save)),
        ("load", Some(Causal::load)),
    ];
    let kv = [rotating, snapshots].concat();
    let kinds = vec![
        Kind::new("layer", "kv", layer, Layer::open, &kv),
        Kind::new("layer", "rotating", layer, Layer::open, rotating),
        Kind::new("unified", "causal", unified, Causal::open, causal),
    ];
    Driver::new(r#"{"name": "kit-rust", "version": "1"}"#, kinds).run()
}
