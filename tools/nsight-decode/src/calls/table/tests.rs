// SPDX-License-Identifier: GPL-2.0-only
//! Another reader, the crate parquet, finds what was written.

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;

use super::*;
use crate::calls::{Kind, Known};

fn row(n: i64, rng: &mut u64) -> Row {
    *rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let random = *rng >> 33;
    let start = 46_000_000_000 + n as u64 * 7;
    Row {
        parent: n - 1 - (random % 3) as i64,
        depth: (random % 40) as u32,
        kind: [Kind::Function, Kind::Thread, Kind::Frequency][random as usize % 3],
        symbol: 1 + (random % 5) as u32,
        dso: 0,
        pid: 7,
        tid: -1,
        start,
        end: start + random % (1 << (random % 31)),
        children: 1,
        start_known: Known::Measured,
        end_known: [Known::Inferred, Known::Missing][random as usize % 2],
        arg: [0, i64::MAX, i64::MIN, -1][random as usize % 4],
        address: random << 40 | 0xffff_0000_0000_0000,
        before: u32::MAX,
        cause: u32::MAX,
    }
}

#[test]
fn rows_are_read_as_they_were() {
    let directory = crate::scratch::Directory::new();
    let format = Format::new(&columns::schema::schema(), 1).unwrap();
    let names: Vec<Arc<str>> = ["dso", "a", "bb", "", "read \u{e4}", "x"].map(Arc::from).to_vec();
    let file = CoreFile::create(directory.path().join("f"), &format).unwrap();
    let mut rng = 1;
    // Groups arrive in any order.
    let groups: Vec<Vec<Row>> =
        [1, 5000, 129].iter().map(|&n| (0..n).map(|n| row(n, &mut rng)).collect()).collect();
    let first = [0, 1, 5001];
    for number in [2, 0, 1] {
        let rows = &groups[number];
        let group = columns::columns(&format.schema, 3, first[number], rows, &names, &format.memory);
        file.take(number as u64, group);
    }
    file.finish(3).unwrap();

    let reader = SerializedFileReader::new(File::open(directory.path().join("f")).unwrap()).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows(), 5130);
    let core = 3i64 << 40;
    let expected = groups.iter().flatten().enumerate();
    for (found, (number, row)) in reader.get_row_iter(None).unwrap().zip(expected) {
        let found = found.unwrap();
        let long = |column| found.get_long(column).unwrap();
        let int = |column| found.get_int(column).unwrap();
        let text = |column| found.get_string(column).unwrap().as_str();
        let parent = if row.parent < 0 { -1 } else { core + row.parent };
        assert_eq!((long(0), long(1)), (core + number as i64, parent));
        assert_eq!((int(2), int(6), int(7), int(8)), (row.depth as i32, 3, 7, -1));
        assert_eq!(text(3), row.kind.name());
        assert_eq!((text(4), text(5)), (&*names[row.symbol as usize], "dso"));
        let dur = (row.end - row.start) as i64;
        assert_eq!((long(9), long(10), long(11)), (row.start as i64, dur, (dur - 1).max(0)));
        assert_eq!((text(12), text(13)), ("measured", row.end_known.name()));
        assert_eq!((long(14), found.get_ulong(15).unwrap()), (row.arg, row.address));
        assert_eq!((text(16), text(17)), ("", ""));
    }
}

#[test]
fn a_row_group_that_was_not_made_is_an_error() {
    let directory = crate::scratch::Directory::new();
    let format = Format::new(&columns::schema::schema(), 1).unwrap();
    let file = CoreFile::create(directory.path().join("f"), &format).unwrap();
    file.take(1, columns::columns(&format.schema, 0, 0, &[row(0, &mut 1)], &Vec::new(), &format.memory));
    assert!(file.finish(2).is_err());
}
