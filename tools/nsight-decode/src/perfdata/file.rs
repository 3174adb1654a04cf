// SPDX-License-Identifier: GPL-2.0-only
//! A perf.data file: header, events, features, records.
//!
//! The crate linux-perf-data was tried. It reads AUXTRACE payload, but copies all of it through a queue that sorts
//! whole rounds, stops at the first damaged or cut record, and does not support directories. This module maps the file,
//! so that PT data are read in place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};

use super::layout::{attr, feature, record, sample, text_at, u16_at, u32_at, u64_at};
use super::layout::{FILE_HEADER, MAGIC, PIPE_HEADER};
use crate::error::{Error, Result};
use crate::files;

/// An event of the recording: its `perf_event_attr`, as far as it matters here.
#[derive(Clone, Debug)]
pub struct Attr {
    pub kind: u32,
    pub config: u64,
    pub sample_type: u64,
    pub flags: u64,
    pub ids: Vec<u64>,
}

pub struct File {
    pub path: PathBuf,
    /// The directory of `perf record --kcore`, which contains kcore_dir and the data.
    pub directory: Option<PathBuf>,
    map: Mmap,
    pub attrs: Vec<Attr>,
    data: Range<usize>,
    features: BTreeMap<u8, Range<usize>>,
    /// perf did not end normally, or the file is shorter than its header says.
    pub cut: bool,
}

/// How many bytes of the file are read before their pages are released.
pub const RELEASED: usize = 1 << 20;

/// A record: its type, misc and body, and its offset in the file.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub at: usize,
    pub kind: u32,
    pub misc: u16,
    pub body: &'a [u8],
}

/// The fields that the kernel adds to each record, as far as they were recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleId {
    pub pid: i32,
    pub tid: i32,
    pub time: u64,
    pub cpu: Option<u32>,
}

impl File {
    pub fn open(given: &Path) -> Result<Self> {
        let directory = given.is_dir().then(|| given.to_owned());
        let path = directory.as_ref().map_or_else(|| given.to_owned(), |f| f.join("data"));
        let readable = "give a perf.data file, or the directory that perf record --kcore made";
        let file = files::open(&path).map_err(|e| {
            let denied = e.kind() == std::io::ErrorKind::PermissionDenied;
            Error::input(
                &path,
                e,
                if denied { "read it as the user who recorded it, or as root" } else { readable },
            )
        })?;
        let meta = file.metadata().map_err(|e| Error::input(&path, e, readable))?;
        if meta.len() < PIPE_HEADER {
            return Err(Error::input(&path, "no perf.data file (too short)", readable));
        }
        // SAFETY: a recording is read after it was made. If it becomes shorter meanwhile, SIGBUS ends the program.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::input(&path, e, readable))?;
        Self::parse(path, directory, map)
    }

    fn parse(path: PathBuf, directory: Option<PathBuf>, map: Mmap) -> Result<Self> {
        let swapped: Vec<u8> = MAGIC.iter().rev().copied().collect();
        if map[..8] == swapped[..] {
            return Err(Error::input(
                &path,
                "recorded on a machine of the other byte order",
                "Intel PT exists on x86 only: is this the right file?",
            ));
        }
        if &map[..8] != MAGIC {
            return Err(Error::input(&path, "no perf.data file", "give what perf record wrote"));
        }
        let header_size = u64_at(&map, 8);
        if header_size == PIPE_HEADER {
            return Err(Error::input(
                &path,
                "recorded in pipe mode (perf record -o -)",
                "record with -o FILE, or convert it: perf inject -i FILE -o OTHER",
            ));
        }
        if header_size != FILE_HEADER || (map.len() as u64) < FILE_HEADER {
            return Err(Error::input(&path, "its header is damaged", "copy the file again, or record anew"));
        }
        let mut file = Self {
            path,
            directory,
            attrs: Vec::new(),
            data: 0..0,
            features: BTreeMap::new(),
            cut: false,
            map,
        };
        file.attrs = file.parse_attrs()?;
        let (begin, size) = (u64_at(&file.map, 40), u64_at(&file.map, 48));
        let length = file.map.len() as u64;
        let end = begin.saturating_add(size);
        // size is 0 until perf ends.
        file.cut = size == 0 || end > length;
        let end = if file.cut { length } else { end };
        file.data = begin.min(length) as usize..end as usize;
        if !file.cut {
            file.parse_features();
        }
        Ok(file)
    }

    fn section(&self, at: usize) -> Option<Range<usize>> {
        let (begin, size) = (u64_at(&self.map, at), u64_at(&self.map, at + 8));
        let end = begin.checked_add(size)?;
        (end <= self.map.len() as u64).then_some(begin as usize..end as usize)
    }

    fn parse_attrs(&self) -> Result<Vec<Attr>> {
        let damaged = || Error::input(&self.path, "its list of events is damaged", "record anew");
        let size = u64_at(&self.map, 16) as usize;
        let section = self.section(24).ok_or_else(damaged)?;
        if !(64..=4096).contains(&size) {
            return Err(damaged());
        }
        let mut attrs = Vec::new();
        // Each id belongs to one event. Without this limit, overlapping lists could be copied again and again.
        let mut left = self.map.len();
        for at in section.clone().step_by(size).take(section.len() / size) {
            let bytes = &self.map[at..at + size];
            let ids = self.section(at + size - 16).ok_or_else(damaged)?;
            left = left.checked_sub(ids.len()).ok_or_else(damaged)?;
            attrs.push(Attr {
                kind: u32_at(bytes, attr::TYPE),
                config: u64_at(bytes, attr::CONFIG),
                sample_type: u64_at(bytes, attr::SAMPLE_TYPE),
                flags: u64_at(bytes, attr::FLAGS),
                ids: self.map[ids].chunks_exact(8).map(|id| u64_at(id, 0)).collect(),
            });
        }
        if attrs.is_empty() {
            return Err(damaged());
        }
        Ok(attrs)
    }

    /// Best effort: only BPF code depends on features alone.
    fn parse_features(&mut self) {
        let mut table = self.data.end;
        for bit in 0..feature::COUNT {
            if self.map[72 + usize::from(bit) / 8] >> (bit % 8) & 1 == 1 {
                match self.section(table) {
                    Some(section) => drop(self.features.insert(bit, section)),
                    None => self.cut = true,
                }
                table += 16;
            }
        }
    }

    /// Bytes of a header feature.
    pub fn feature(&self, bit: u8) -> Option<&[u8]> {
        self.features.get(&bit).map(|range| &self.map[range.clone()])
    }

    /// A header feature that is a string.
    pub fn text(&self, bit: u8) -> Option<String> {
        self.feature(bit).map(|bytes| text_at(bytes, 4))
    }

    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.map[range]
    }

    /// The mapping's pages in a range need no memory until they are read again: a recording may be larger than the memory.
    pub fn release(&self, range: Range<usize>) {
        // SAFETY: the mapping is shared and read-only, so its pages are read from the file again.
        // If it fails, there is only more memory in use.
        let _ =
            unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
    }

    pub fn size(&self) -> usize {
        self.map.len()
    }

    pub fn records(&self) -> Records<'_> {
        Records { file: self, at: self.data.start, kept: self.data.start, lost_bytes: 0 }
    }
}

/// Records in the order of the file.
pub struct Records<'a> {
    file: &'a File,
    at: usize,
    /// Where those begin whose pages are in memory.
    kept: usize,
    /// Bytes after a damaged or cut record: their meaning is unknown.
    pub lost_bytes: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let rest = &self.file.map[self.at..self.file.data.end];
        let size = usize::from(u16_at(rest, 6));
        if size < 8 || size > rest.len() {
            // Zeros at the end of a cut file are pages that were never written.
            self.lost_bytes = rest.len();
            self.at = self.file.data.end;
            return None;
        }
        let kind = u32_at(rest, 0);
        let found = Record { at: self.at, kind, misc: u16_at(rest, 4), body: &rest[8..size] };
        self.at += size;
        if kind == record::AUXTRACE {
            // The data follow the record and are not part of its size.
            let data = u64_at(found.body, 0).min((self.file.data.end - self.at) as u64);
            self.at += data as usize;
        }
        if self.at - self.kept >= RELEASED {
            self.file.release(self.kept..found.at);
            self.kept = found.at;
        }
        Some(found)
    }
}

/// Where the fields at the end of an event's records are: their size, and the offset of each field that they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    size: usize,
    task: Option<usize>,
    time: Option<usize>,
    cpu: Option<usize>,
}

impl Fields {
    fn new(kind: u64) -> Self {
        let mut fields = Self::default();
        let mut field = |bit| {
            let at = (kind & bit != 0).then_some(fields.size);
            fields.size += if at.is_some() { 8 } else { 0 };
            at
        };
        let (task, time) = (field(sample::TID), field(sample::TIME));
        let _ = (field(sample::ID), field(sample::STREAM_ID));
        let cpu = field(sample::CPU);
        let _ = field(sample::IDENTIFIER);
        Self { task, time, cpu, ..fields }
    }
}

/// Finds the fields at the end of the records of each event.
pub struct SampleIds {
    /// By event id, in order, if records have it and events differ; otherwise all events have the same fields.
    by_id: Vec<(u64, Fields)>,
    common: Fields,
    all: bool,
}

impl SampleIds {
    pub fn new(attrs: &[Attr]) -> Self {
        let common = attrs.first().map_or(0, |a| a.sample_type);
        let differ = attrs.iter().any(|a| a.sample_type != common);
        let has_id = differ && attrs.iter().all(|a| a.sample_type & sample::IDENTIFIER != 0);
        let ids = |a: &Attr| a.ids.iter().map(|&id| (id, a.sample_type)).collect::<Vec<_>>();
        // Of events with the same id, the last one counts.
        let by_id: BTreeMap<u64, u64> = attrs.iter().filter(|_| has_id).flat_map(ids).collect();
        Self {
            by_id: by_id.into_iter().map(|(id, kind)| (id, Fields::new(kind))).collect(),
            common: Fields::new(common),
            all: attrs.iter().all(|a| a.flags & attr::SAMPLE_ID_ALL != 0),
        }
    }

    /// The fields, and their offset in the body.
    pub fn of(&self, record: &Record) -> (SampleId, usize) {
        let body = record.body;
        let mut id = SampleId { pid: -1, tid: -1, ..SampleId::default() };
        if record.kind >= record::USER || record.kind == record::SAMPLE || !self.all {
            return (id, body.len());
        }
        let fields = if self.by_id.is_empty() { &self.common } else { self.by_event(body) };
        let Some(begin) = body.len().checked_sub(fields.size) else { return (id, body.len()) };
        let own = &body[begin..];
        if let Some(at) = fields.task {
            (id.pid, id.tid) = (u32_at(own, at) as i32, u32_at(own, at + 4) as i32);
        }
        if let Some(at) = fields.time {
            id.time = u64_at(own, at);
        }
        id.cpu = fields.cpu.map(|at| u32_at(own, at));
        (id, begin)
    }

    fn by_event(&self, body: &[u8]) -> &Fields {
        let last = body.len().checked_sub(8).map_or(0, |at| u64_at(body, at));
        let at = self.by_id.binary_search_by_key(&last, |(id, _)| *id);
        at.map_or(&self.common, |at| &self.by_id[at].1)
    }
}
