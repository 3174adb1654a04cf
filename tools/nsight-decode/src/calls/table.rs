// SPDX-License-Identifier: GPL-2.0-only
//! Rows to Parquet: one file a core, in batches, so that memory does not depend on how many there are.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::account::Account;
use super::stack::Core;
use super::texts::Texts;
use super::{Row, KINDS, KNOWN};
use crate::error::{Error, Result};

/// Numbers of calls are unique over cores, and ascend in the order of the table.
const CORE_SHIFT: u32 = 40;

pub struct Table {
    folder: PathBuf,
    schema: SchemaRef,
    files: BTreeMap<i32, ArrowWriter<File>>,
    rows: u64,
}

fn text() -> DataType {
    DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into())
}

fn schema() -> SchemaRef {
    let columns = [
        ("call_id", DataType::Int64),
        ("parent_id", DataType::Int64),
        ("depth", DataType::Int32),
        ("kind", text()),
        ("symbol", text()),
        ("dso", text()),
        ("cpu", DataType::Int32),
        ("pid", DataType::Int32),
        ("tid", DataType::Int32),
        ("start_ns", DataType::Int64),
        ("dur_ns", DataType::Int64),
        ("self_ns", DataType::Int64),
        ("start_known", text()),
        ("end_known", text()),
        ("arg", DataType::Int64),
        ("start_addr", DataType::UInt64),
        ("before", text()),
        ("gap_cause", text()),
    ];
    let fields: Vec<_> = columns.into_iter().map(|(name, kind)| Field::new(name, kind, false)).collect();
    Arc::new(Schema::new(fields))
}

impl Table {
    pub fn create(folder: &Path) -> Result<Self> {
        let calls = folder.join("calls");
        fs::create_dir_all(&calls).map_err(|e| Error::output(&calls, e))?;
        // Cores of a run before are not this one's.
        for entry in fs::read_dir(&calls).map_err(|e| Error::output(&calls, e))?.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("cpu-") && name.ends_with(".parquet") {
                fs::remove_file(entry.path()).map_err(|e| Error::output(&entry.path(), e))?;
            }
        }
        Ok(Self { folder: folder.to_owned(), schema: schema(), files: BTreeMap::new(), rows: 0 })
    }

    fn path(&self, cpu: i32) -> PathBuf {
        self.folder.join("calls").join(format!("cpu-{cpu:04}.parquet"))
    }

    fn file(&mut self, cpu: i32) -> Result<&mut ArrowWriter<File>> {
        if !self.files.contains_key(&cpu) {
            let path = self.path(cpu);
            let file = File::create(&path).map_err(|e| Error::output(&path, e))?;
            let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
            let writer = ArrowWriter::try_new(file, self.schema.clone(), Some(properties));
            self.files.insert(cpu, writer.map_err(|e| Error::output(&path, e))?);
        }
        Ok(self.files.get_mut(&cpu).expect("it is there now"))
    }

    /// Writes what is done of a core.
    pub fn write(&mut self, core: &mut Core, texts: &Texts) -> Result<()> {
        let (first, rows) = core.take();
        if rows.is_empty() {
            return Ok(());
        }
        let path = self.path(core.cpu);
        let batch =
            batch(&self.schema, core.cpu, first, &rows, texts).map_err(|e| Error::output(&path, e))?;
        self.rows += rows.len() as u64;
        let file = self.file(core.cpu)?;
        file.write(&batch).and_then(|()| file.flush()).map_err(|e| Error::output(&path, e))
    }

    /// Everything is written; `calls.json` last. Returns how many rows there are.
    pub fn finish(&mut self, account: &Account) -> Result<u64> {
        if self.files.is_empty() {
            self.file(0)?;
        }
        for (cpu, writer) in std::mem::take(&mut self.files) {
            writer.close().map_err(|e| Error::output(&self.path(cpu), e))?;
        }
        let path = self.folder.join("calls.json");
        let text = format!("{:#}\n", account.json(self.rows));
        fs::write(&path, text).map_err(|e| Error::output(&path, e))?;
        Ok(self.rows)
    }
}

/// The texts that a batch uses, numbered anew: a file's dictionary has no others.
#[derive(Default)]
struct Dictionary<'a> {
    numbers: HashMap<u32, i32>,
    values: Vec<&'a str>,
    keys: Vec<i32>,
}

impl<'a> Dictionary<'a> {
    fn add(&mut self, text: u32, texts: &'a Texts) {
        let next = self.values.len() as i32;
        let key = *self.numbers.entry(text).or_insert(next);
        if key == next {
            self.values.push(texts.all.get(text as usize).map_or("", |t| t));
        }
        self.keys.push(key);
    }

    fn array(self) -> ArrayRef {
        strings(self.keys, self.values)
    }
}

fn strings(keys: Vec<i32>, values: Vec<&str>) -> ArrayRef {
    let values: ArrayRef = Arc::new(StringArray::from(values));
    Arc::new(DictionaryArray::<Int32Type>::new(Int32Array::from(keys), values))
}

fn batch(
    schema: &SchemaRef,
    cpu: i32,
    first: i64,
    rows: &[Row],
    texts: &Texts,
) -> std::result::Result<RecordBatch, arrow_schema::ArrowError> {
    let core = i64::from(cpu) << CORE_SHIFT;
    let n = rows.len() as i64;
    let int64 =
        |of: &dyn Fn(&Row) -> i64| -> ArrayRef { Arc::new(rows.iter().map(of).collect::<Int64Array>()) };
    let int32 =
        |of: &dyn Fn(&Row) -> i32| -> ArrayRef { Arc::new(rows.iter().map(of).collect::<Int32Array>()) };
    let names = |of: &dyn Fn(&Row) -> u32| {
        let mut dictionary = Dictionary::default();
        rows.iter().for_each(|row| dictionary.add(of(row), texts));
        dictionary.array()
    };
    let fixed = |of: &dyn Fn(&Row) -> u8, values: &[&str]| -> ArrayRef {
        strings(rows.iter().map(|row| of(row).into()).collect(), values.to_vec())
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new((first..first + n).map(|id| core + id).collect::<Int64Array>()),
        int64(&|r| if r.parent < 0 { -1 } else { core + r.parent }),
        int32(&|r| r.depth as i32),
        fixed(&|r| r.kind as u8, &KINDS),
        names(&|r| r.symbol),
        names(&|r| r.dso),
        int32(&|_| cpu),
        int32(&|r| r.pid),
        int32(&|r| r.tid),
        int64(&|r| r.start as i64),
        int64(&|r| (r.end - r.start) as i64),
        int64(&|r| (r.end - r.start).saturating_sub(r.children) as i64),
        fixed(&|r| r.start_known as u8, &KNOWN),
        fixed(&|r| r.end_known as u8, &KNOWN),
        int64(&|r| r.arg),
        Arc::new(rows.iter().map(|r| r.address).collect::<UInt64Array>()),
        names(&|r| r.before),
        names(&|r| r.cause),
    ];
    RecordBatch::try_new(schema.clone(), columns)
}
