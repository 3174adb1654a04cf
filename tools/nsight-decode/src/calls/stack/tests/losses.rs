// SPDX-License-Identifier: GPL-2.0-only
//! What is unknown about a core: losses, their gaps, and what continues after them.

use super::*;

#[test]
fn nothing_goes_on_over_a_loss() {
    let mut m = Machine::new();
    m.main();
    m.edge(Way::Call, 0x1010, "main", 0x2000, "read");
    m.event(Code::Overflow, 0);
    m.time += 100;
    m.edge(Way::TraceBegin, 0, "", 0x2000, "read");
    m.edge(Way::Return, 0x2040, "read", 0x1015, "main");
    assert_eq!(
        m.rows(),
        [
            "0 thread tid 7 100-120 in mi",
            "1 function main 100-120 mi mi",
            "2 function read 110-120 me mi",
            "0 gap overflow 120-220 me me",
            "0 thread tid 7 220-230 mi in",
            "1 function read 220-230 mi me",
            "1 function main 230-230 mi in",
        ]
    );
}

#[test]
fn a_loss_lasts_until_the_time_is_told_again() {
    let mut m = Machine::new();
    m.main();
    m.event(Code::Overflow, 0);
    m.edge(Way::TraceBegin, 0, "", 0x1020, "main");
    m.time -= 10;
    m.event(Code::Stall, 80 | (Stall::Other as u64) << 56).event(Code::StallAt, 0x1004);
    m.time += 100;
    m.edge(Way::Call, 0x1030, "main", 0x2000, "read");
    assert_eq!(
        m.rows()[2..],
        [
            "0 gap overflow 110-190 me me", // the begin at 110 shows where, the end of the stall shows when
            "0 thread tid 7 190-210 mi in",
            "1 function main 190-210 mi in",
            "2 function read 210-210 me in",
        ]
    );
}

#[test]
fn a_return_at_the_end_of_a_loss_lasts_no_time() {
    let mut m = Machine::new();
    m.main();
    m.event(Code::Overflow, 0);
    m.edge(Way::Return, 0x2040, "read", 0x1015, "main");
    m.time += 100;
    m.edge(Way::Call, 0x1030, "main", 0x2000, "read");
    assert_eq!(
        m.rows()[2..],
        [
            "0 gap overflow 110-220 me me",
            "0 thread tid 7 220-220 mi in",
            "1 function read 220-220 mi me",
            "1 function main 220-220 mi in",
            "2 function read 220-220 me in",
        ]
    );
}

#[test]
fn a_loss_right_behind_another_begins_where_that_one_ends() {
    let mut m = Machine::new();
    m.main();
    m.event(Code::Overflow, 0);
    m.edge(Way::TraceBegin, 0, "", 0x1020, "main").event(Code::Overflow, 0);
    m.time += 100;
    m.edge(Way::TraceBegin, 0, "", 0x1020, "main").edge(Way::Call, 0x1030, "main", 0x2000, "read");
    assert_eq!(
        m.rows()[2..],
        [
            "0 gap overflow 110-110 me me",
            "0 thread tid 7 110-120 mi mi",
            "1 function main 110-120 mi mi",
            "0 gap overflow 120-220 me me",
            "0 thread tid 7 220-230 mi in",
            "1 function main 220-230 mi in",
            "2 function read 230-230 me in",
        ]
    );
}

#[test]
fn a_loss_begins_where_decoding_ended_and_ends_where_it_goes_on() {
    let mut m = Machine::new();
    m.main();
    // A loop of 500 ns without an edge, an error, and after it a loop of 300 ns.
    m.time = 600;
    m.event(Code::DecodeError, 5);
    m.time = 700;
    m.edge(Way::TraceBegin, 0, "", 0x1020, "main");
    m.time = 1000;
    m.edge(Way::Call, 0x1030, "main", 0x2000, "read");
    assert_eq!(
        m.rows(),
        [
            "0 thread tid 7 100-600 in mi",
            "1 function main 100-600 mi mi",
            "0 gap not decoded 600-700 me me",
            "0 thread tid 7 700-1000 mi in",
            "1 function main 700-1000 mi in",
            "2 function read 1000-1000 me in",
        ]
    );
}

/// For any events in any order: rows tile time, none ends before it begins, and a gap lasts as long as nothing is
/// known.
#[test]
fn gaps_and_rows_make_up_all_of_time() {
    let mut state = 7_u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let losses = [Code::DecodeError, Code::Overflow, Code::Guest, Code::Skipped];
    for round in 0..2_000 {
        let mut m = Machine::new();
        m.main();
        let (mut lost_since, mut lost, mut last) = (None, 0, 100);
        for _ in 0..random(40) {
            m.time += random(30) + 1;
            let time = m.time;
            match random(8) {
                0 => {
                    m.event(losses[random(4) as usize], 5);
                    lost_since = lost_since.or(Some(time));
                    last = last.max(time);
                    continue;
                }
                1 if lost_since.is_none() => m.event(Code::Cbr, random(3)),
                2 if lost_since.is_none() => {
                    m.event(Code::Stall, random(50));
                    m.time += 50;
                    continue;
                }
                3 => m.edge(Way::Return, 0x2040, "read", 0x1015, "main"),
                4 => m.edge(Way::Interrupt, 0x1010, "main", K, "asm_sysvec_timer"),
                5 => m.edge(Way::Iret, K + 0x40, "asm_sysvec_timer", 0x1010, "main"),
                _ => m.edge(Way::Call, 0x1010, "main", 0x2000, "read"),
            };
            lost += lost_since.take().map_or(0, |since| time.saturating_sub(since));
        }
        m.core.finish();
        let (_, rows) = m.core.take(Vec::new());
        assert!(rows.iter().all(|r| r.start <= r.end), "round {round}");
        let top: Vec<&Row> = rows.iter().filter(|r| r.parent < 0).collect();
        assert!(top.windows(2).all(|w| w[0].end == w[1].start), "round {round}");
        let of_gaps: u64 = top.iter().filter(|r| r.kind == Kind::Gap).map(|r| r.end - r.start).sum();
        assert_eq!(of_gaps, lost, "round {round}");
        let inside = |r: &Row| {
            r.parent < 0 || {
                let parent = &rows[r.parent as usize];
                parent.start <= r.start && r.end <= parent.end
            }
        };
        assert!(rows.iter().all(inside), "round {round}");
    }
}

#[test]
fn what_packets_tell_of_time_ends_a_loss() {
    let mut m = Machine::new();
    m.main();
    m.event(Code::Overflow, 0);
    m.edge(Way::TraceBegin, 0, "", 0x1020, "main").event(Code::Ptwrite, 1);
    m.time += 100;
    m.edge(Way::Call, 0x1030, "main", 0x2000, "read");
    assert_eq!(
        m.rows()[2..],
        [
            "0 gap overflow 110-120 me me",
            "0 thread tid 7 120-220 mi in",
            "1 function main 120-220 mi in",
            "2 ptwrite ptwrite 120-120 me me",
            "2 function read 220-220 me in",
        ]
    );
}
