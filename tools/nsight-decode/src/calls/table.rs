// SPDX-License-Identifier: GPL-2.0-only
//! Writes rows as Parquet: one file per core, in row groups, so that memory does not depend on the number of rows.

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

pub struct Table {
    directory: PathBuf,
    format: Arc<Format>,
    files: BTreeMap<i32, (Arc<CoreFile>, u64)>,
    rows: u64,
    pool: Arc<ThreadPool>,
    /// Memory of rows that were written, to be reused.
    spare: Arc<Mutex<Vec<Vec<Row>>>>,
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
            rows: 0,
            pool,
            spare: Arc::default(),
        })
    }

    fn path(&self, cpu: i32) -> PathBuf {
        self.directory.join("calls").join(format!("cpu-{cpu:04}.parquet"))
    }

    /// The file of a core, and how many row groups it has received.
    fn file(&mut self, cpu: i32) -> Result<&mut (Arc<CoreFile>, u64)> {
        if !self.files.contains_key(&cpu) {
            let file = CoreFile::create(self.path(cpu), &self.format)?;
            self.files.insert(cpu, (file.into(), 0));
        }
        Ok(self.files.get_mut(&cpu).expect("it is there now"))
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
        let (file, n_groups) = self.file(cpu)?;
        file.check()?;
        let (file, number) = (file.clone(), *n_groups);
        // A cut completes many rows at once: their columns take more memory than the rows.
        let ranges: Vec<_> =
            (0..rows.len()).step_by(GROUP).map(|at| at..rows.len().min(at + GROUP)).collect();
        *n_groups += ranges.len() as u64;
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
        Ok(())
    }

    /// Writes everything that is left; `calls.json` last. Returns the number of rows.
    pub fn finish(&mut self, account: &Account) -> Result<u64> {
        if self.files.is_empty() {
            self.file(0)?;
        }
        self.pool.finish();
        for (file, n_groups) in std::mem::take(&mut self.files).into_values() {
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
