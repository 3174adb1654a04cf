// SPDX-License-Identifier: GPL-2.0-only
//! Progress on stderr, once decoding takes more than a second.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub struct Progress {
    shown: bool,
    on: bool,
    begin: Instant,
    last: Instant,
    done: u64,
    all: u64,
}

impl Progress {
    pub fn new(on: bool, all: u64) -> Self {
        let now = Instant::now();
        Self { shown: false, on, begin: now, last: now, done: 0, all }
    }

    pub fn done(&mut self, bytes: u64) {
        self.done += bytes;
        let terminal = std::io::stderr().is_terminal();
        // In a log, an occasional line is enough.
        let pause = Duration::from_secs(if terminal { 1 } else { 10 });
        if !self.on || self.last.elapsed() < pause {
            return;
        }
        self.last = Instant::now();
        let seconds = self.begin.elapsed().as_secs_f64();
        let rate = self.done as f64 / 1e6 / seconds;
        let percent = 100.0 * self.done as f64 / self.all.max(1) as f64;
        let end = if terminal { "\r" } else { "\n" };
        eprint!("decoded {percent:.0} % of {:.0} MB, {rate:.1} MB/s{end}", self.all as f64 / 1e6);
        let _ = std::io::stderr().flush();
        self.shown = terminal;
    }

    pub fn finish(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprintln!();
        }
    }
}
