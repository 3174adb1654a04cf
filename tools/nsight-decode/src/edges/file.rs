// SPDX-License-Identifier: GPL-2.0-only
//! The edge stream as a file; Documentation/formats.md describes it.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::stream::{Code, Edge, Event, Kind, Sink, ThreadName};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"NSEDGE01";

mod block {
    pub const EDGES: u32 = 1;
    pub const SYMBOLS: u32 = 2;
    pub const EVENTS: u32 = 3;
    pub const NAMES: u32 = 4;
}

/// Bytes of a row.
const EDGE: usize = 8 * 3 + 4 * 5 + 1;
const EVENT: usize = 8 + 4 * 4 + 8;
const NAME: usize = 8 + 4 + 4 + 16;
/// Rows of a block.
const ROWS: usize = 1 << 16;
/// Larger blocks are refused: no writer makes such blocks.
const MAX_PAYLOAD: u64 = 1 << 28;

pub struct Writer {
    path: PathBuf,
    out: BufWriter<File>,
    edges: Vec<Edge>,
    events: Vec<Event>,
}

impl Writer {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::output(path, e))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(MAGIC).map_err(|e| Error::output(path, e))?;
        Ok(Self { path: path.to_owned(), out, edges: Vec::new(), events: Vec::new() })
    }

    fn block(&mut self, kind: u32, rows: usize, mut payload: Vec<u8>) -> Result<()> {
        payload.resize(payload.len().next_multiple_of(8), 0);
        let mut head = kind.to_le_bytes().to_vec();
        head.extend((rows as u32).to_le_bytes());
        head.extend((payload.len() as u64).to_le_bytes());
        let done = self.out.write_all(&head).and_then(|()| self.out.write_all(&payload));
        done.map_err(|e| Error::output(&self.path, e))
    }

    fn flush_edges(&mut self) -> Result<()> {
        if self.edges.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.edges);
        let mut payload = Vec::with_capacity(rows.len() * EDGE + 8);
        rows.iter().for_each(|e| payload.extend(e.time.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.from.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.to.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.pid.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.tid.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.cpu.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.from_sym.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.to_sym.to_le_bytes()));
        rows.iter().for_each(|e| payload.push(e.kind as u8));
        self.block(block::EDGES, rows.len(), payload)
    }

    fn flush_events(&mut self) -> Result<()> {
        if self.events.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.events);
        let mut payload = Vec::with_capacity(rows.len() * EVENT);
        rows.iter().for_each(|e| payload.extend(e.time.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.cpu.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.pid.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.tid.to_le_bytes()));
        rows.iter().for_each(|e| payload.extend((e.code as u32).to_le_bytes()));
        rows.iter().for_each(|e| payload.extend(e.value.to_le_bytes()));
        self.block(block::EVENTS, rows.len(), payload)
    }

    /// Writes everything that is left.
    pub fn finish(mut self) -> Result<()> {
        self.flush_edges()?;
        self.flush_events()?;
        self.out.flush().map_err(|e| Error::output(&self.path, e))
    }
}

impl Sink for Writer {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        self.edges.push(*edge);
        if self.edges.len() == ROWS {
            self.flush_edges()?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.events.push(*event);
        if event.code.is_placed() {
            // An event stands between the edges before and after it.
            self.flush_edges()?;
            self.flush_events()?;
        } else if self.events.len() == ROWS {
            self.flush_events()?;
        }
        Ok(())
    }

    fn symbols(&mut self, new: &[(Arc<str>, Arc<str>)]) -> Result<()> {
        self.flush_edges()?;
        let mut payload = Vec::new();
        for text in new.iter().flat_map(|(symbol, dso)| [symbol, dso]) {
            payload.extend(text.bytes().filter(|&b| b != 0));
            payload.push(0);
        }
        self.block(block::SYMBOLS, new.len(), payload)
    }

    fn names(&mut self, names: &[ThreadName]) -> Result<()> {
        let mut payload = Vec::with_capacity(names.len() * NAME);
        names.iter().for_each(|n| payload.extend(n.time.to_le_bytes()));
        names.iter().for_each(|n| payload.extend(n.pid.to_le_bytes()));
        names.iter().for_each(|n| payload.extend(n.tid.to_le_bytes()));
        for name in names {
            let bytes = name.name.as_bytes();
            let n = bytes.len().min(16);
            payload.extend(&bytes[..n]);
            payload.resize(payload.len() + 16 - n, 0);
        }
        self.block(block::NAMES, names.len(), payload)
    }
}

/// Reads an edge file block by block.
pub struct Reader {
    path: PathBuf,
    input: BufReader<File>,
    n_symbols: u64,
    /// The file ends within a block: its writer was killed.
    pub cut: bool,
    /// Skipped blocks of unknown kinds, and skipped events of unknown kinds in known blocks: only newer programs write
    /// them.
    pub unknown: u64,
}

const WRITER: &str = "give a file that nsight-decode edges or the dlfilter wrote";

impl Reader {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::input(path, e, WRITER))?;
        let mut input = BufReader::with_capacity(1 << 20, file);
        let mut magic = [0; 8];
        if input.read_exact(&mut magic).is_err() || &magic != MAGIC {
            return Err(Error::input(path, "no edge file", WRITER));
        }
        Ok(Self { path: path.to_owned(), input, n_symbols: 0, cut: false, unknown: 0 })
    }

    fn damaged(&self, what: &str) -> Error {
        Error::input(&self.path, format_args!("damaged: {what}"), WRITER)
    }

    /// Gives the rows of the next block to `sink`. False: there is no further block.
    pub fn block(&mut self, sink: &mut dyn Sink) -> Result<bool> {
        let mut head = [0; 16];
        match read_up_to(&mut self.input, &mut head) {
            Ok(0) => return Ok(false),
            Ok(16) => {}
            Ok(_) => {
                self.cut = true;
                return Ok(false);
            }
            Err(e) => return Err(Error::input(&self.path, e, WRITER)),
        }
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (kind, rows) = (word(0), word(4) as usize);
        let size = u64::from(word(8)) | u64::from(word(12)) << 32;
        if size > MAX_PAYLOAD || size % 8 != 0 {
            return Err(self.damaged("a block's size"));
        }
        let mut payload = vec![0; size as usize];
        match read_up_to(&mut self.input, &mut payload) {
            Ok(n) if n == payload.len() => {}
            Ok(_) => {
                self.cut = true;
                return Ok(false);
            }
            Err(e) => return Err(Error::input(&self.path, e, WRITER)),
        }
        match kind {
            block::EDGES => self.edges(rows, &payload, sink)?,
            block::SYMBOLS => self.symbols(rows, &payload, sink)?,
            block::EVENTS => self.events(rows, &payload, sink)?,
            block::NAMES => self.names(rows, &payload, sink)?,
            _ => self.unknown += 1,
        }
        Ok(true)
    }

    fn check(&self, rows: usize, row: usize, payload: &[u8]) -> Result<()> {
        match rows.checked_mul(row) {
            Some(size) if size <= payload.len() => Ok(()),
            _ => Err(self.damaged("a block has more rows than bytes")),
        }
    }

    fn edges(&mut self, rows: usize, payload: &[u8], sink: &mut dyn Sink) -> Result<()> {
        self.check(rows, EDGE, payload)?;
        let mut columns = Columns { rest: payload, rows };
        let (time, from, to) = (columns.take(8), columns.take(8), columns.take(8));
        let (pid, tid, cpu) = (columns.take(4), columns.take(4), columns.take(4));
        let (from_sym, to_sym, kind) = (columns.take(4), columns.take(4), columns.take(1));
        for row in 0..rows {
            let Some(kind) = Kind::from_number(kind[row]) else { return Err(self.damaged("a kind of edge")) };
            let edge = Edge {
                time: u64_of(time, row),
                from: u64_of(from, row),
                to: u64_of(to, row),
                pid: u32_of(pid, row) as i32,
                tid: u32_of(tid, row) as i32,
                cpu: u32_of(cpu, row) as i32,
                from_sym: u32_of(from_sym, row),
                to_sym: u32_of(to_sym, row),
                kind,
            };
            if u64::from(edge.from_sym.max(edge.to_sym)) >= self.n_symbols.max(1) {
                return Err(self.damaged("an edge names a symbol before its block"));
            }
            sink.edge(&edge)?;
        }
        Ok(())
    }

    fn symbols(&mut self, rows: usize, payload: &[u8], sink: &mut dyn Sink) -> Result<()> {
        let mut texts = payload.split(|&b| b == 0).map(|t| Arc::from(String::from_utf8_lossy(t)));
        let mut new = Vec::new();
        for _ in 0..rows {
            match (texts.next(), texts.next()) {
                (Some(symbol), Some(dso)) => new.push((symbol, dso)),
                _ => return Err(self.damaged("a block has more symbols than text")),
            }
        }
        self.n_symbols += rows as u64;
        sink.symbols(&new)
    }

    fn events(&mut self, rows: usize, payload: &[u8], sink: &mut dyn Sink) -> Result<()> {
        self.check(rows, EVENT, payload)?;
        let mut columns = Columns { rest: payload, rows };
        let (time, cpu, pid, tid) = (columns.take(8), columns.take(4), columns.take(4), columns.take(4));
        let (code, value) = (columns.take(4), columns.take(8));
        for row in 0..rows {
            let Some(code) = Code::from_number(u32_of(code, row)) else {
                self.unknown += 1;
                continue;
            };
            sink.event(&Event {
                time: u64_of(time, row),
                cpu: u32_of(cpu, row) as i32,
                pid: u32_of(pid, row) as i32,
                tid: u32_of(tid, row) as i32,
                code,
                value: u64_of(value, row),
            })?;
        }
        Ok(())
    }

    fn names(&mut self, rows: usize, payload: &[u8], sink: &mut dyn Sink) -> Result<()> {
        self.check(rows, NAME, payload)?;
        let mut columns = Columns { rest: payload, rows };
        let (time, pid, tid, text) = (columns.take(8), columns.take(4), columns.take(4), columns.take(16));
        let names: Vec<ThreadName> = (0..rows)
            .map(|row| {
                let bytes = &text[16 * row..16 * row + 16];
                let end = bytes.iter().position(|&b| b == 0).unwrap_or(16);
                ThreadName {
                    time: u64_of(time, row),
                    pid: u32_of(pid, row) as i32,
                    tid: u32_of(tid, row) as i32,
                    name: String::from_utf8_lossy(&bytes[..end]).into_owned(),
                }
            })
            .collect();
        sink.names(&names)
    }
}

struct Columns<'a> {
    rest: &'a [u8],
    rows: usize,
}

impl<'a> Columns<'a> {
    /// The next column; the caller has checked that all columns are present.
    fn take(&mut self, size: usize) -> &'a [u8] {
        let (column, rest) = self.rest.split_at(self.rows * size);
        self.rest = rest;
        column
    }
}

fn u32_of(column: &[u8], row: usize) -> u32 {
    crate::perfdata::layout::u32_at(column, 4 * row)
}

fn u64_of(column: &[u8], row: usize) -> u64 {
    crate::perfdata::layout::u64_at(column, 8 * row)
}

fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match input.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Gives the whole file to `sink`. The returned reader reports what was not read.
pub fn read(path: &Path, sink: &mut dyn Sink) -> Result<Reader> {
    let mut reader = Reader::open(path)?;
    while reader.block(sink)? {}
    Ok(reader)
}

#[cfg(test)]
mod tests;
