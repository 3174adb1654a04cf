// SPDX-License-Identifier: GPL-2.0-only
//! Converts rows to the columns of one row group.

use bytes::Bytes;
use parquet::basic::{Encoding, PageType};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::Result;
use parquet::file::metadata::{ColumnChunkMetaData, PageEncodingStats};
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};

use super::encode::{self, Dictionary};
use super::row::{Kind, Known, Row};
use super::texts::Names;
use crate::spare::Spare;

/// The numbers of calls are unique over all cores, and ascend in the order of the table.
const CORE_SHIFT: u32 = 40;

/// A column of a row group, as it is stored in the file.
pub struct Chunk {
    pub bytes: Bytes,
    pub close: ColumnCloseResult,
}

/// The values of a column, one per row.
enum Values {
    /// Stored as differences.
    Long(Vec<i64>),
    /// Few distinct values, of 8 or of 4 bytes.
    Few(Dictionary, Vec<u32>, usize),
    /// Numbers from 0 up to a small one.
    Small(u32, Vec<u32>),
    /// The texts, and which of them each row has.
    Text(Vec<u8>, u32, Vec<u32>),
}

/// The names and types of the columns, in their order.
pub mod schema {
    use arrow_schema::{DataType, Field, Schema};

    fn text() -> DataType {
        DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into())
    }

    pub fn schema() -> Schema {
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
        Schema::new(columns.into_iter().map(|(name, kind)| Field::new(name, kind, false)).collect::<Vec<_>>())
    }
}

/// Memory of columns, for `threads` that make row groups of so many rows.
pub struct Memory {
    long: Spare<i64>,
    short: Spare<u32>,
}

impl Memory {
    pub fn new(threads: usize, rows: usize) -> Self {
        let n = threads.min(4);
        Self { long: Spare::new(6 * n, rows / 2), short: Spare::new(12 * n, rows / 2) }
    }

    fn put(&self, values: Values) {
        match values {
            Values::Long(values) => self.long.put(values),
            Values::Few(_, values, _) | Values::Small(_, values) | Values::Text(_, _, values) => {
                self.short.put(values);
            }
        }
    }
}

/// The columns for rows of one core; `first` is the number of the first row.
pub fn columns(
    schema: &SchemaDescriptor,
    cpu: i32,
    first: i64,
    rows: &[Row],
    names: &Names,
    memory: &Memory,
) -> Result<Vec<Chunk>> {
    let values = split(cpu, first, rows, names, memory);
    let of = |(column, values)| {
        let chunk = chunk(column, &values);
        memory.put(values);
        chunk
    };
    schema.columns().iter().zip(values).map(of).collect()
}

/// The values of all columns, in the order of the schema. One pass over the rows: they are as large as the caches, and
/// there are many columns.
fn split(cpu: i32, first: i64, rows: &[Row], names: &Names, memory: &Memory) -> [Values; 18] {
    let n = rows.len();
    let core = i64::from(cpu) << CORE_SHIFT;
    let long = || memory.long.get(n);
    let (mut id, mut parent, mut start, mut dur, mut own, mut arg) =
        (long(), long(), long(), long(), long(), long());
    let few = |size| Few { dictionary: Dictionary::default(), indices: memory.short.get(n), size };
    let (mut pid, mut tid, mut cpus) = (few(4), few(4), few(4));
    let mut address = few(8);
    let text = || Used::new(names, memory.short.get(n));
    let (mut symbol, mut dso, mut before, mut cause) = (text(), text(), text(), text());
    let fixed = || memory.short.get(n);
    let (mut depth, mut kind, mut start_known, mut end_known) = (fixed(), fixed(), fixed(), fixed());
    for (number, row) in rows.iter().enumerate() {
        id.push(core + first + number as i64);
        parent.push(if row.parent < 0 { -1 } else { core + row.parent });
        start.push(row.start as i64);
        dur.push((row.end - row.start) as i64);
        own.push((row.end - row.start).saturating_sub(row.children) as i64);
        arg.push(row.arg);
        depth.push(row.depth);
        cpus.push(cpu.into());
        pid.push(row.pid.into());
        tid.push(row.tid.into());
        address.push(row.address as i64);
        symbol.push(row.symbol);
        dso.push(row.dso);
        before.push(row.before);
        cause.push(row.cause);
        kind.push(row.kind as u32);
        start_known.push(row.start_known as u32);
        end_known.push(row.end_known as u32);
    }
    let fixed = |indices, texts: &[&str]| {
        let mut bytes = Vec::new();
        texts.iter().for_each(|text| plain_text(text, &mut bytes));
        Values::Text(bytes, texts.len() as u32, indices)
    };
    [
        Values::Long(id),
        Values::Long(parent),
        Values::Small(depth.iter().copied().max().unwrap_or(0), depth),
        fixed(kind, Kind::NAMES),
        symbol.values(),
        dso.values(),
        cpus.values(),
        pid.values(),
        tid.values(),
        Values::Long(start),
        Values::Long(dur),
        Values::Long(own),
        fixed(start_known, Known::NAMES),
        fixed(end_known, Known::NAMES),
        Values::Long(arg),
        address.values(),
        before.values(),
        cause.values(),
    ]
}

struct Few {
    dictionary: Dictionary,
    indices: Vec<u32>,
    size: usize,
}

impl Few {
    fn push(&mut self, value: i64) {
        self.indices.push(self.dictionary.number(value));
    }

    fn values(self) -> Values {
        Values::Few(self.dictionary, self.indices, self.size)
    }
}

/// The texts that the rows use, with new numbers: the dictionary of a row group contains no others.
struct Used<'a> {
    names: &'a Names,
    /// Indexed by the number of a text; `u32::MAX`: not used. One additional entry for texts without a number.
    numbers: Vec<u32>,
    bytes: Vec<u8>,
    n: u32,
    indices: Vec<u32>,
}

impl<'a> Used<'a> {
    fn new(names: &'a Names, indices: Vec<u32>) -> Self {
        let numbers = vec![u32::MAX; names.len() + 1];
        Self { names, numbers, bytes: Vec::new(), n: 0, indices }
    }

    fn push(&mut self, text: u32) {
        let slot = (text as usize).min(self.names.len());
        if self.numbers[slot] == u32::MAX {
            plain_text(self.names.get(slot).map_or("", |t| t), &mut self.bytes);
            self.numbers[slot] = self.n;
            self.n += 1;
        }
        self.indices.push(self.numbers[slot]);
    }

    fn values(self) -> Values {
        Values::Text(self.bytes, self.n, self.indices)
    }
}

/// PLAIN encoding of a text.
fn plain_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn chunk(column: &ColumnDescPtr, values: &Values) -> Result<Chunk> {
    let mut out = TrackedWrite::new(Vec::new());
    let mut writer = SerializedPageWriter::new(&mut out);
    let mut pages = Vec::new();
    let mut statistics = None;
    let n = match values {
        Values::Long(values) => {
            let mut bytes = Vec::with_capacity(values.len() * 2);
            encode::differences(values, &mut bytes);
            pages.push(data(&mut writer, values.len(), bytes, Encoding::DELTA_BINARY_PACKED)?);
            let range = values.iter().min().zip(values.iter().max());
            statistics =
                range.map(|(min, max)| Statistics::int64(Some(*min), Some(*max), None, Some(0), false));
            values.len()
        }
        Values::Few(dictionary, indices, size) => {
            let mut bytes = Vec::with_capacity(dictionary.values.len() * size);
            dictionary.values.iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()[..*size]));
            let n = dictionary.values.len() as u32;
            by_dictionary(&mut writer, &mut pages, bytes, n, indices)?
        }
        Values::Small(most, indices) => {
            let bytes = (0..=*most).flat_map(u32::to_le_bytes).collect();
            by_dictionary(&mut writer, &mut pages, bytes, most + 1, indices)?
        }
        Values::Text(texts, n, indices) => {
            by_dictionary(&mut writer, &mut pages, texts.clone(), *n, indices)?
        }
    };
    let size: usize = pages.iter().map(|p: &(Encoding, PageWriteSpec)| p.1.compressed_size).sum();
    let whole: usize = pages.iter().map(|p| p.1.uncompressed_size).sum();
    let (dictionary, data) = match &pages[..] {
        [(_, dictionary), (_, data)] => (Some(dictionary.offset as i64), data.offset),
        [(_, data), ..] => (None, data.offset),
        [] => (None, 0),
    };
    let page_encodings = |(encoding, page): &(Encoding, PageWriteSpec)| PageEncodingStats {
        page_type: page.page_type,
        encoding: *encoding,
        count: 1,
    };
    let mut metadata = ColumnChunkMetaData::builder(column.clone())
        .set_encodings(pages.iter().map(|p| p.0).collect())
        .set_page_encoding_stats(pages.iter().map(page_encodings).collect())
        .set_num_values(n as i64)
        .set_total_compressed_size(size as i64)
        .set_total_uncompressed_size(whole as i64)
        .set_data_page_offset(data as i64)
        .set_dictionary_page_offset(dictionary);
    if let Some(statistics) = statistics {
        metadata = metadata.set_statistics(statistics);
    }
    let close = ColumnCloseResult {
        bytes_written: size as u64,
        rows_written: n as u64,
        metadata: metadata.build()?,
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    };
    Ok(Chunk { bytes: out.into_inner()?.into(), close })
}

type Writer<'a> = SerializedPageWriter<'a, Vec<u8>>;

fn data(
    writer: &mut Writer,
    n: usize,
    bytes: Vec<u8>,
    encoding: Encoding,
) -> Result<(Encoding, PageWriteSpec)> {
    let size = bytes.len();
    let page = Page::DataPage {
        buf: bytes.into(),
        num_values: n as u32,
        encoding,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    let mut spec = writer.write_page(CompressedPage::new(page, size))?;
    spec.page_type = PageType::DATA_PAGE;
    Ok((encoding, spec))
}

fn by_dictionary(
    writer: &mut Writer,
    pages: &mut Vec<(Encoding, PageWriteSpec)>,
    values: Vec<u8>,
    n_values: u32,
    indices: &[u32],
) -> Result<usize> {
    let size = values.len();
    let page = Page::DictionaryPage {
        buf: values.into(),
        num_values: n_values,
        encoding: Encoding::PLAIN,
        is_sorted: false,
    };
    pages.push((Encoding::PLAIN, writer.write_page(CompressedPage::new(page, size))?));
    let width = encode::width(n_values.saturating_sub(1));
    let mut bytes = vec![width as u8];
    encode::indices(indices, width, &mut bytes);
    pages.push(data(writer, indices.len(), bytes, Encoding::RLE_DICTIONARY)?);
    Ok(indices.len())
}
