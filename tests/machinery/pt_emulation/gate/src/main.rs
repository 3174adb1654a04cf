// SPDX-License-Identifier: GPL-2.0-only
//! pt-gate: checks whether a capture agrees with the log.

mod capture;
mod compare;
mod libipt;
mod perf;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use capture::Capture;
use clap::Parser;
use serde::Serialize;

/// Largest allowed difference between a guest's RDTSC and the time of packets, ns.
const MAX_TIME_DIFFERENCE: u64 = 10;

/// Judge a capture: the log against its code, perf and libipt against the log.
#[derive(Parser)]
#[command(name = "pt-gate", version)]
struct Args {
    #[arg(long)]
    log: PathBuf,
    /// Directory with aux.json
    #[arg(long)]
    aux: PathBuf,
    /// The merged recording
    #[arg(long)]
    perf_data: PathBuf,
    /// Directory under which perf finds user programs
    #[arg(long)]
    symfs: Option<PathBuf>,
    #[arg(long, default_value = "perf")]
    perf: String,
    /// Built with make -C tests/machinery/pt_emulation
    #[arg(long)]
    libipt: Option<PathBuf>,
    /// Write every figure to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Verdict {
    passed: bool,
    checks: Vec<Check>,
    bytes_per_million_instructions: u64,
    walk: pt_walk::Report,
    perf: perf::Judgement,
    libipt: Vec<libipt::Judgement>,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    /// None: not applicable, `text` says why.
    passed: Option<bool>,
    text: String,
}

fn walk_check(report: &pt_walk::Report) -> Check {
    let text = format!(
        "{} instructions, {} transitions, {} that the code does not allow; {} TSC readings, at most {} ticks off",
        report.instructions,
        report.transitions,
        report.n_unexpected + report.undecodable + report.undefined,
        report.tsc_readings,
        report.tsc_max_disagreement,
    );
    let passed =
        report.is_consistent() && !report.was_cut && report.tsc_max_disagreement <= MAX_TIME_DIFFERENCE;
    Check { name: "log", passed: Some(passed), text }
}

fn perf_checks(judgement: &perf::Judgement, losses: usize) -> [Check; 2] {
    let compared: u64 = judgement.branches.iter().map(|c| c.compared).sum();
    let missing: u64 = judgement.branches.iter().map(|c| c.missing).sum();
    let [low, p1, median, p99, high] = judgement.time_error_ns;
    let mut text = format!("{compared} branches equal");
    if missing > 0 {
        text += &format!(", {missing} in injected losses");
    }
    text += &format!("; times off by {median} ns (p1 {p1}, p99 {p99}, least {low}, most {high})");
    if let Some(difference) = judgement.branches.iter().find_map(|c| c.difference.as_ref()) {
        text += &format!("; {difference}");
    }
    let equal = judgement.branches.iter().all(compare::Comparison::is_equal);
    let errors = format!(
        "{} errors, {} of them unexpected; {losses} losses injected, {} of them not reported {}",
        judgement.errors,
        judgement.unexpected_errors,
        judgement.silent_losses,
        judgement.examples.first().map_or("", String::as_str),
    );
    let clean = judgement.unexpected_errors == 0 && judgement.silent_losses == 0;
    [
        Check { name: "perf branches", passed: Some(equal), text },
        Check { name: "perf errors", passed: Some(clean), text: errors.trim().to_owned() },
    ]
}

fn libipt_checks(judgements: &[libipt::Judgement], injected: bool) -> [Check; 2] {
    let compared: u64 = judgements.iter().map(|j| j.branches.compared).sum();
    let errors: u64 = judgements.iter().map(|j| j.errors).sum();
    let difference = judgements.iter().find_map(|j| j.branches.difference.as_ref());
    let mut text = format!("{compared} branches equal, {errors} errors");
    for more in difference.into_iter().chain(judgements.iter().flat_map(|j| &j.examples)).take(2) {
        text += &format!("; {more}");
    }
    let passed = difference.is_none() && compared > 0 && (errors == 0 || injected);
    let readings: u64 = judgements.iter().map(|j| j.readings).sum();
    let most = judgements.iter().map(|j| j.max_time_difference).max().unwrap_or(0);
    let clock = if readings == 0 {
        let why = "no reading to compare (filtered, lost, or without CYC packets)".to_owned();
        Check { name: "packet time", passed: None, text: why }
    } else {
        let text = format!("{readings} readings of RDTSC, at most {most} ns from the packets");
        Check { name: "packet time", passed: Some(most <= MAX_TIME_DIFFERENCE), text }
    };
    [Check { name: "libipt", passed: Some(passed), text }, clock]
}

fn with_libipt(capture: &Capture, tool: &Path) -> Result<Vec<libipt::Judgement>> {
    let code = std::env::temp_dir().join(format!("pt-gate-{}.code", std::process::id()));
    let judged = libipt::write_code(capture, &code).and_then(|()| {
        (0..capture.walk.cpus.len()).map(|cpu| libipt::judge(capture, cpu, tool, &code)).collect()
    });
    let _ = std::fs::remove_file(&code); // after a failed run, it may not exist
    judged
}

/// Why libipt cannot judge such packets.
fn without_libipt(options: &capture::Options) -> Option<&'static str> {
    if !options.noretcomp {
        Some("with RET compression libipt and perf disagree on which returns are compressed")
    } else if options.user_only {
        Some("packets of user code alone do not tell the address space; perf has it from the side-band")
    } else {
        None
    }
}

fn run(args: &Args) -> Result<bool> {
    let capture = Capture::load(&args.log, &args.aux)?;
    let perf = perf::judge(&capture, &args.perf, &args.perf_data, args.symfs.as_deref())?;
    let losses = capture.aux.injected.len();
    let mut checks = vec![walk_check(&capture.walk.report)];
    checks.extend(perf_checks(&perf, losses));
    let mut libipt = Vec::new();
    if let Some(tool) = &args.libipt {
        match without_libipt(&capture.aux.options) {
            None => {
                libipt = with_libipt(&capture, tool)?;
                checks.extend(libipt_checks(&libipt, losses > 0));
            }
            Some(why) => checks.push(Check { name: "libipt", passed: None, text: why.to_owned() }),
        }
    }
    let passed = checks.iter().all(|check| check.passed != Some(false));
    for Check { name, passed, text } in &checks {
        let word = match passed {
            Some(true) => "ok",
            Some(false) => "FAILED",
            None => "skipped",
        };
        println!("{name:<14} {word:<7} {text}");
    }
    if let Some(path) = &args.json {
        let bytes_per_million_instructions = capture.bytes_per_million();
        let walk = capture.walk.report;
        let verdict = Verdict { passed, checks, bytes_per_million_instructions, walk, perf, libipt };
        let text = serde_json::to_string_pretty(&verdict)?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
    }
    Ok(passed)
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pt-gate: error: {error:#}");
            ExitCode::from(2)
        }
    }
}
