// SPDX-License-Identifier: MIT
// Copyright (c) 2026 the Lockstep authors

//! An example for the kit in Rust: kv and rotating of the layer contract.
//! reference/kv.py and rotating.py are what the operations mean.

mod lockstep;

use lockstep::{Answer, Answered, Driver, Kind, Message, Refusal, Snapshot, Token};

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

// --- what is declared ------------------------------------------------------------------

fn main() -> std::io::Result<()> {
    let layer = r#"{"refuses": true, "config": {"mask_padding": [1, 4]}}"#;
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
    let kv = [rotating, snapshots].concat();
    let kinds = vec![
        Kind::new("layer", "kv", layer, Layer::open, &kv),
        Kind::new("layer", "rotating", layer, Layer::open, rotating),
    ];
    Driver::new(r#"{"name": "kit-rust", "version": "1"}"#, kinds).run()
}
