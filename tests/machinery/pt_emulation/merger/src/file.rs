// SPDX-License-Identifier: GPL-2.0-only
//! The parts of a perf.data file: events, records, header features.

use std::collections::BTreeMap;

use anyhow::{bail, ensure, Result};

use crate::layout::{attr, feature, put_u64, record, u32_at, u64_at, FILE_HEADER, MAGIC, RECORD_HEADER};

/// An event of the recording.
#[derive(Clone, Debug)]
pub struct Event {
    /// `perf_event_attr`.
    pub attr: Vec<u8>,
    /// Its ids, one per CPU.
    pub ids: Vec<u64>,
    pub name: String,
}

impl Event {
    pub fn flags(&self) -> u64 {
        u64_at(&self.attr, attr::FLAGS)
    }

    pub fn sample_type(&self) -> u64 {
        u64_at(&self.attr, attr::SAMPLE_TYPE)
    }

    pub fn is_dummy(&self) -> bool {
        u32_at(&self.attr, attr::TYPE) == attr::TYPE_SOFTWARE
            && u64_at(&self.attr, attr::CONFIG) == attr::CONFIG_DUMMY
    }
}

#[derive(Debug, Default)]
pub struct File {
    pub events: Vec<Event>,
    /// Records one after the other, each with its header.
    pub data: Vec<u8>,
    pub features: BTreeMap<usize, Vec<u8>>,
}

fn section(bytes: &[u8], at: usize) -> Result<&[u8]> {
    let (offset, size) = (u64_at(bytes, at) as usize, u64_at(bytes, at + 8) as usize);
    let end = offset.checked_add(size);
    match end.and_then(|end| bytes.get(offset..end)) {
        Some(section) => Ok(section),
        None => bail!("cut: a section of it lies behind its end"),
    }
}

impl File {
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        ensure!(bytes.len() >= FILE_HEADER, "too short for a perf.data");
        if &bytes[..8] != MAGIC {
            let mut swapped = *MAGIC;
            swapped.reverse();
            ensure!(bytes[..8] != swapped, "of a machine with the other byte order");
            bail!("no perf.data (of a recording by perf record)");
        }
        let attr_size = u64_at(bytes, 16) as usize;
        ensure!(attr_size > 16, "damaged: events of {attr_size} bytes");
        let data = section(bytes, 40)?;
        ensure!(!data.is_empty(), "cut: perf record did not end by itself");
        let features = features(bytes)?;
        let names = names(features.get(&feature::EVENT_DESC).map_or(&[][..], |f| f));
        let mut events = Vec::new();
        for (index, entry) in section(bytes, 24)?.chunks_exact(attr_size).enumerate() {
            let (attr, ids) = entry.split_at(attr_size - 16);
            let at = (ids.as_ptr() as usize) - (bytes.as_ptr() as usize);
            let ids = section(bytes, at)?.chunks_exact(8).map(|id| u64_at(id, 0)).collect();
            let name = names.get(index).cloned().unwrap_or_default();
            events.push(Event { attr: attr.to_vec(), ids, name });
        }
        Ok(Self { events, data: data.to_vec(), features })
    }

    pub fn records(&self) -> Records<'_> {
        Records { data: &self.data, at: 0 }
    }

    /// The bytes of the file. `index`: offsets of the AUXTRACE records in `data`, for their feature.
    pub fn write(&self, index: &[usize]) -> Vec<u8> {
        let attr_size = self.events.iter().map(|e| e.attr.len()).max().unwrap_or(0) + 16;
        let n_ids: usize = self.events.iter().map(|e| e.ids.len()).sum();
        let attrs_at = FILE_HEADER + n_ids * 8;
        let data_at = attrs_at + self.events.len() * attr_size;

        let mut out = vec![0; FILE_HEADER];
        out[..8].copy_from_slice(MAGIC);
        let header = [FILE_HEADER as u64, attr_size as u64, attrs_at as u64, (data_at - attrs_at) as u64];
        for (n, value) in header.into_iter().chain([data_at as u64, self.data.len() as u64]).enumerate() {
            put_u64(&mut out, 8 + 8 * n, value);
        }
        let mut ids_at = Vec::new();
        for event in &self.events {
            ids_at.push(out.len());
            out.extend(event.ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        for (event, at) in self.events.iter().zip(ids_at) {
            let end = out.len() + attr_size - 16;
            out.extend(&event.attr);
            out.resize(end, 0);
            out.extend((at as u64).to_le_bytes());
            out.extend((event.ids.len() as u64 * 8).to_le_bytes());
        }
        out.extend(&self.data);

        let mut features = self.features.clone();
        features.insert(feature::EVENT_DESC, event_desc(&self.events));
        if !index.is_empty() {
            let entry = |&at: &usize| [(data_at + at) as u64, AUXTRACE_SIZE as u64];
            let words = std::iter::once(index.len() as u64).chain(index.iter().flat_map(entry));
            features.insert(feature::AUXTRACE, words.flat_map(u64::to_le_bytes).collect());
        }
        let mut at = out.len() + features.len() * 16;
        for (&bit, bytes) in &features {
            out[72 + bit / 8] |= 1 << (bit % 8);
            out.extend((at as u64).to_le_bytes());
            out.extend((bytes.len() as u64).to_le_bytes());
            at += bytes.len();
        }
        for bytes in features.values() {
            out.extend(bytes);
        }
        out
    }
}

/// Bytes of an AUXTRACE record; its data follow and are not part of its size.
pub const AUXTRACE_SIZE: usize = 48;

fn features(bytes: &[u8]) -> Result<BTreeMap<usize, Vec<u8>>> {
    let mut table = (u64_at(bytes, 40) + u64_at(bytes, 48)) as usize;
    let mut features = BTreeMap::new();
    for bit in 0..feature::COUNT {
        if bytes[72 + bit / 8] >> (bit % 8) & 1 == 1 {
            ensure!(bytes.len() >= table + 16, "cut: its header features are missing");
            features.insert(bit, section(bytes, table)?.to_vec());
            table += 16;
        }
    }
    Ok(features)
}

/// Names of the events in an EVENT_DESC feature, as far as they can be read.
fn names(desc: &[u8]) -> Vec<String> {
    let attr_size = u32_at(desc, 4) as usize;
    let mut names = Vec::new();
    let mut at = 8;
    for _ in 0..u32_at(desc, 0) {
        at += attr_size;
        let n_ids = u32_at(desc, at) as usize;
        let length = u32_at(desc, at + 4) as usize;
        let Some(text) = desc.get(at + 8..(at + 8).saturating_add(length)) else { break };
        let end = text.iter().position(|&b| b == 0).unwrap_or(length);
        names.push(String::from_utf8_lossy(&text[..end]).into_owned());
        at += 8 + length + n_ids * 8;
    }
    names
}

fn event_desc(events: &[Event]) -> Vec<u8> {
    let attr_size = events.iter().map(|e| e.attr.len()).max().unwrap_or(0);
    let mut out = (events.len() as u32).to_le_bytes().to_vec();
    out.extend((attr_size as u32).to_le_bytes());
    for event in events {
        let end = out.len() + attr_size;
        out.extend(&event.attr);
        out.resize(end, 0);
        out.extend((event.ids.len() as u32).to_le_bytes());
        out.extend(crate::layout::string(&event.name));
        out.extend(event.ids.iter().flat_map(|id| id.to_le_bytes()));
    }
    out
}

/// Records in order: (offset, bytes).
pub struct Records<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(usize, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.data[self.at..];
        if rest.is_empty() {
            return None;
        }
        let size = usize::from(rest.get(6..8).map_or(0, |b| u16::from_le_bytes([b[0], b[1]])));
        if size < RECORD_HEADER || size > rest.len() {
            let at = std::mem::replace(&mut self.at, self.data.len());
            return Some(Err(anyhow::anyhow!("cut or damaged: no record at byte {at} of its data")));
        }
        let bytes = &rest[..size];
        let at = self.at;
        self.at += size;
        match u32_at(bytes, 0) {
            record::COMPRESSED | record::COMPRESSED2 => {
                self.at = self.data.len();
                Some(Err(anyhow::anyhow!("compressed; record without -z")))
            }
            record::AUXTRACE => {
                self.at = self.data.len();
                Some(Err(anyhow::anyhow!("has AUX data already; give the side-band alone")))
            }
            _ => Some(Ok((at, bytes))),
        }
    }
}
