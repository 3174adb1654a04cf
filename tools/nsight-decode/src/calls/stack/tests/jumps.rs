// SPDX-License-Identifier: GPL-2.0-only
//! Functions that are left without a return: longjmp, and C++ exceptions.

use super::*;

/// `main` calls `handler`, which calls `read` and is continued by longjmp: three times.
fn jumps_back(m: &mut Machine) {
    for _ in 0..3 {
        m.edge(Way::Call, 0x1010, "main", 0x8000, "handler");
        m.edge(Way::Call, 0x8010, "handler", 0x2000, "read");
    }
}

#[test]
fn what_longjmp_left_ends_with_the_next_call() {
    let mut m = Machine::new();
    m.main().edge(Way::Call, 0x1010, "main", 0x9000, "restorer");
    m.edge(Way::TailCall, 0x9010, "restorer", 0x2000, "read");
    m.edge(Way::Return, 0x2040, "read", 0x1015, "main");
    jumps_back(&mut m);
    let rows = m.rows();
    assert_eq!(
        rows[4..],
        [
            "2 function handler 140-160 me in",
            "3 function read 150-160 me in",
            "2 function handler 160-180 me in",
            "3 function read 170-180 me in",
            "2 function handler 180-190 me in",
            "3 function read 190-190 me in",
        ]
    );
}

#[test]
fn where_jumps_are_not_told_any_function_may_run() {
    let mut m = Machine::new();
    jumps_back(m.main());
    assert!(m.rows().last().unwrap().starts_with("7 function read 160-160"));
}

#[test]
fn a_function_that_calls_itself_goes_on_behind_a_part_that_lies_elsewhere() {
    let mut m = Machine::new();
    m.main().edge(Way::Call, 0x1010, "main", 0x5000, "vfs_read");
    m.edge(Way::Call, 0x5010, "vfs_read", 0x5000, "vfs_read");
    m.edge(Way::TailCall, 0x5004, "vfs_read", 0x9000, "vfs_read.cold");
    // longjmp led back.
    m.edge(Way::Call, 0x5020, "vfs_read", 0x2000, "read").edge(
        Way::Return,
        0x2040,
        "read",
        0x5025,
        "vfs_read",
    );
    m.edge(Way::Return, 0x5040, "vfs_read", 0x5015, "vfs_read");
    let rows = m.rows();
    assert_eq!(rows[4], "3 function vfs_read.cold 130-160 me me");
    assert_eq!(rows[2], "2 function vfs_read 110-160 me in");
}

#[test]
fn an_exception_returns_into_the_function_that_handles_it() {
    let mut m = Machine::new();
    m.main().edge(Way::Call, 0x1010, "main", 0x8000, "handler");
    m.edge(Way::Call, 0x8010, "handler", 0x2000, "read");
    m.edge(Way::Call, 0x2010, "read", 0x9000, "restorer");
    m.edge(Way::Return, 0x9010, "restorer", 0x8100, "handler");
    assert_eq!(
        m.rows()[1..],
        [
            "1 function main 100-140 mi in",
            "2 function handler 110-140 me in",
            "3 function read 120-140 me me",
            "4 function restorer 130-140 me in",
        ]
    );
}
