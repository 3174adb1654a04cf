// SPDX-License-Identifier: GPL-2.0-only
//! Writes rows as Parquet: one file per core, in row groups, so that memory does not depend on the number of rows. The index at the
//! end of a file has an entry for each row group, which is in memory until then: where files have many, they are continued in others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use arrow_schema::Schema;
use parquet::arrow::{add_encoded_arrow_schema_to_metadata, ArrowSchemaConverter};
use parquet::errors::Result as Encoded;
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::SchemaDescriptor;

use super::account::Account;
use super::columns::{self, Chunk, Memory};
use super::row::Row;
use super::stack::{Core, BATCH};
use super::texts::Texts;
use crate::error::{Error, Result};
use crate::thread_pool::ThreadPool;

/// Rows of a row group, at most.
const GROUP: usize = 2 * BATCH;
/// Row groups of all files that are being written, at most; but each core may have a few.
const MOST_GROUPS: u64 = 1 << 10;
const LEAST_GROUPS: u64 = 4;

pub struct Table {
    directory: PathBuf,
    format: Arc<Format>,
    files: BTreeMap<i32, Written>,
    /// Row groups of these files, and their limit.
    pub(super) n_groups: u64,
    pub(super) most_groups: u64,
    /// Files that are continued in others, but still wait for row groups.
    unfinished: Vec<(Arc<CoreFile>, u64)>,
    rows: u64,
    pool: Arc<ThreadPool>,
    /// Memory of rows that were written, to be reused.
    spare: Arc<Mutex<Vec<Vec<Row>>>>,
}

/// The file of a core.
struct Written {
    /// None: the next row begins a file.
    file: Option<Arc<CoreFile>>,
    /// Row groups that it has received.
    n_groups: u64,
    /// Files of the core before this one.
    part: u32,
}

/// What all files share.
struct Format {
    schema: SchemaDescriptor,
    properties: WriterPropertiesPtr,
    memory: Memory,
}

impl Format {
    fn new(schema: &Schema, threads: usize) -> Encoded<Self> {
        let mut properties = WriterProperties::builder().build();
        // Arrow readers need this to read texts as dictionaries.
        add_encoded_arrow_schema_to_metadata(schema, &mut properties);
        let schema = ArrowSchemaConverter::new().convert(schema)?;
        Ok(Self { schema, properties: properties.into(), memory: Memory::new(threads, GROUP) })
    }
}

/// The file of a core. Several threads make row groups; they are written in order.
struct CoreFile {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    writer: SerializedFileWriter<BufWriter<File>>,
    /// Row groups that wait for earlier ones.
    waiting: BTreeMap<u64, Encoded<Vec<Chunk>>>,
    next: u64,
    failed: Option<String>,
}

impl State {
    fn write(&mut self, group: Encoded<Vec<Chunk>>) -> Encoded<()> {
        let mut to = self.writer.next_row_group()?;
        for Chunk { bytes, close } in group? {
            to.append_column(&bytes, close)?;
        }
        to.close().map(drop)
    }
}

impl CoreFile {
    fn create(path: PathBuf, format: &Format) -> Result<Self> {
        let failed = |e: &dyn std::fmt::Display| Error::output(&path, e);
        let file = BufWriter::with_capacity(1 << 18, File::create(&path).map_err(|e| failed(&e))?);
        let writer =
            SerializedFileWriter::new(file, format.schema.root_schema_ptr(), format.properties.clone());
        let writer = writer.map_err(|e| failed(&e))?;
        let state = State { writer, waiting: BTreeMap::new(), next: 0, failed: None };
        Ok(Self { path, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the row group with a number, and writes all groups whose turn has come.
    fn take(&self, number: u64, group: Encoded<Vec<Chunk>>) {
        let mut state = self.state();
        state.waiting.insert(number, group);
        while let Some(group) = {
            let next = state.next;
            state.waiting.remove(&next)
        } {
            state.next += 1;
            if state.failed.is_none() {
                state.failed = state.write(group).err().map(|e| e.to_string());
            }
        }
    }

    fn check(&self) -> Result<()> {
        self.state().failed.as_ref().map_or(Ok(()), |e| Err(Error::output(&self.path, e)))
    }

    /// Whether so many row groups were written, or one could not be written.
    fn is_complete(&self, n_groups: u64) -> bool {
        let state = self.state();
        state.next == n_groups || state.failed.is_some()
    }

    /// All row groups are complete.
    fn finish(&self, n_groups: u64) -> Result<()> {
        self.check()?;
        let mut state = self.state();
        if state.next != n_groups {
            return Err(Error::bug(format_args!("{}: a row group was not made", self.path.display())));
        }
        state.writer.finish().map(drop).map_err(|e| Error::output(&self.path, e))
    }
}

impl Table {
    pub fn create(directory: &Path, pool: Arc<ThreadPool>) -> Result<Self> {
        let calls = directory.join("calls");
        fs::create_dir_all(&calls).map_err(|e| Error::output(&calls, e))?;
        // Files of cores from an earlier run do not belong to this one.
        for entry in fs::read_dir(&calls).map_err(|e| Error::output(&calls, e))?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("cpu-") && name.ends_with(".parquet") {
                fs::remove_file(entry.path()).map_err(|e| Error::output(&entry.path(), e))?;
            }
        }
        let format = Format::new(&columns::schema::schema(), pool.threads()).map_err(Error::bug)?.into();
        Ok(Self {
            directory: directory.to_owned(),
            format,
            files: BTreeMap::new(),
            n_groups: 0,
            most_groups: MOST_GROUPS,
            unfinished: Vec::new(),
            rows: 0,
            pool,
            spare: Arc::default(),
        })
    }

    /// The names of a core's files are in the order of its rows.
    fn path(&self, cpu: i32, part: u32) -> PathBuf {
        let part = if part == 0 { String::new() } else { format!("_{part:06}") };
        self.directory.join("calls").join(format!("cpu-{cpu:04}{part}.parquet"))
    }

    /// The file of a core, for so many further row groups. Returns the number of the first one, too.
    fn file(&mut self, cpu: i32, n_groups: u64) -> Result<(Arc<CoreFile>, u64)> {
        let (n, part) = self.files.get(&cpu).map_or((0, 0), |written| (written.n_groups, written.part));
        let file = match self.files.get(&cpu).and_then(|written| written.file.clone()) {
            Some(file) => file,
            None => CoreFile::create(self.path(cpu, part), &self.format)?.into(),
        };
        file.check()?;
        let written = Written { file: Some(file.clone()), n_groups: n + n_groups, part };
        self.files.insert(cpu, written);
        self.n_groups += n_groups;
        Ok((file, n))
    }

    /// Ends the files with most row groups, until the others have few. Their cores' next rows begin calls of a thread: no call
    /// has its caller in another file.
    fn limit(&mut self) -> Result<()> {
        let most = self.most_groups.max(LEAST_GROUPS * self.files.len() as u64);
        while self.n_groups > most {
            let Some(written) = self.files.values_mut().max_by_key(|written| written.n_groups) else { break };
            let n_groups = std::mem::take(&mut written.n_groups);
            written.part += 1;
            self.n_groups -= n_groups;
            self.unfinished.extend(written.file.take().map(|file| (file, n_groups)));
        }
        let mut waiting = Vec::new();
        for (file, n_groups) in std::mem::take(&mut self.unfinished) {
            match file.is_complete(n_groups) {
                true => file.finish(n_groups)?,
                false => waiting.push((file, n_groups)),
            }
        }
        self.unfinished = waiting;
        Ok(())
    }

    /// Writes the complete rows of a core, soon.
    pub fn write(&mut self, core: &mut Core, texts: &Texts) -> Result<()> {
        let spare = self.spare.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let (first, rows) = core.take(spare.unwrap_or_default());
        if rows.is_empty() {
            return Ok(());
        }
        self.rows += rows.len() as u64;
        let cpu = core.cpu;
        // A cut completes many rows at once: their columns take more memory than the rows.
        let ranges: Vec<_> =
            (0..rows.len()).step_by(GROUP).map(|at| at..rows.len().min(at + GROUP)).collect();
        let (file, number) = self.file(cpu, ranges.len() as u64)?;
        let rows = Arc::new(rows);
        for (number, range) in (number..).zip(ranges) {
            let (names, format, spare) = (texts.all.clone(), self.format.clone(), self.spare.clone());
            let (file, rows) = (file.clone(), rows.clone());
            self.pool.give(Box::new(move || {
                let first = first + range.start as i64;
                let group =
                    columns::columns(&format.schema, cpu, first, &rows[range], &names, &format.memory);
                drop(names);
                // More memory than usual is not kept.
                if let Some(rows) = Arc::into_inner(rows).filter(|rows| rows.capacity() <= 2 * GROUP) {
                    spare.lock().unwrap_or_else(|e| e.into_inner()).push(rows);
                }
                file.take(number, group);
            }));
        }
        self.limit()
    }

    /// Writes everything that is left; `calls.json` last. Returns the number of rows.
    pub fn finish(&mut self, account: &Account) -> Result<u64> {
        if self.files.is_empty() {
            self.file(0, 0)?;
        }
        self.pool.finish();
        let files = std::mem::take(&mut self.files).into_values();
        let last = files.filter_map(|written| Some((written.file?, written.n_groups)));
        for (file, n_groups) in std::mem::take(&mut self.unfinished).into_iter().chain(last) {
            file.finish(n_groups)?;
        }
        let path = self.directory.join("calls.json");
        let text = format!("{:#}\n", account.json(self.rows));
        fs::write(&path, text).map_err(|e| Error::output(&path, e))?;
        Ok(self.rows)
    }
}

#[cfg(test)]
mod tests;
