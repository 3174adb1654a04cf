// SPDX-License-Identifier: GPL-2.0-only
//! What the fuzz targets in tests/fuzz/decode use of calls, besides its public functions.

use std::sync::Arc;

use parquet::arrow::ArrowSchemaConverter;

use super::columns::{self, Memory};
use super::row::Row;
use super::stack::{Core, Saved};
use super::texts::Texts;
use crate::edges::{Edge, Event};

pub enum Step {
    Edge(Edge),
    Event(Event),
    /// A cut, as it happens when too many rows wait for the end of an open call.
    Cut,
}

/// The rows of one core. `names`: symbols, by their numbers.
pub fn rows(cpu: i32, names: &[(Arc<str>, Arc<str>)], steps: &[Step]) -> Vec<Row> {
    let (mut core, mut texts, mut saved) = (Core::new(cpu), Texts::default(), Saved::default());
    texts.symbols(names);
    let mut rows = Vec::new();
    for step in steps {
        match step {
            Step::Edge(edge) => core.edge(edge, &mut texts, &mut saved),
            Step::Event(event) => core.event(event, &mut texts),
            Step::Cut => {
                core.cut(&mut texts);
                take(&mut core, &mut rows);
            }
        }
    }
    core.finish();
    take(&mut core, &mut rows);
    rows
}

/// Puts rows into the columns of the table.
pub fn encode(cpu: i32, names: &[(Arc<str>, Arc<str>)], rows: &[Row]) {
    let names = names.iter().map(|(name, _)| name.clone()).collect();
    let schema = ArrowSchemaConverter::new().convert(&columns::schema::schema()).expect("the schema");
    let chunks = columns::columns(&schema, cpu, 0, rows, &names, &Memory::new(1, 64)).expect("columns");
    assert_eq!(chunks.len(), 18);
}

fn take(core: &mut Core, rows: &mut Vec<Row>) {
    let (first, done) = core.take(Vec::new());
    assert_eq!(first, rows.len() as i64);
    rows.extend(done);
}
