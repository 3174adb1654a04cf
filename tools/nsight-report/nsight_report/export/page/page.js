/* SPDX-License-Identifier: GPL-2.0-only */
/* The page of a report: charts, filters, the list of slow messages, one message. Needs uPlot and the scripts before it. */
"use strict";

(() => {
	const $ = (selector) => document.querySelector(selector);
	const data = JSON.parse($("#data").textContent);
	const thing = document.body.dataset.thing; // message, request or interval
	const m = data.messages, n = m.latency.length;
	for (const column of [m.id, m.first_us]) for (let i = 1; i < n; i++) column[i] += column[i - 1];
	const rowOf = new Map(m.id.map((id, row) => [id, row]));
	const slow = data.slow.filter((t) => rowOf.has(t.id));
	const slowOf = new Map(slow.map((t) => [t.id, t]));
	const [unexplained, notSlower] = ["unexplained", "no slower than usual"].map((name) => data.causes.findIndex((c) => c.name === name));
	for (const t of slow) {
		t.row = rowOf.get(t.id);
		t.sums = new Map();
		for (const [cause, ns] of t.why ?? t.brief) t.sums.set(cause, (t.sums.get(cause) || 0) + ns);
		t.top = [...t.sums].sort((a, b) => b[1] - a[1])[0]?.[0] ?? (t.coverage === 1 ? notSlower : unexplained);
	}
	const most = Math.max(...slow.map((t) => t.deviation), 1);
	const say = (text) => { $("#status").textContent = text; };
	const number = (value) => value.toLocaleString("en");

	/* ---- filters */
	const filter = {cause: "", core: "", connection: ""};
	const kept = (row) => (filter.core === "" || m.recv_cpu[row] === +filter.core || m.app_cpu[row] === +filter.core)
		&& (filter.connection === "" || m.connection[row] === +filter.connection);
	const shown = (t) => kept(t.row) && (filter.cause === "" || t.sums.has(+filter.cause) || t.top === +filter.cause);
	let list = slow;
	const option = (value, text) => element("option", {value, textContent: text});
	const count = new Map();
	for (const t of slow) for (const c of t.sums.size ? t.sums.keys() : [t.top]) count.set(c, (count.get(c) || 0) + 1);
	data.causes.forEach((c, i) => { if (count.has(i)) $("#by-cause").append(option(i, `${c.name} (${number(count.get(i))})`)); });
	for (const core of [...new Set([...m.recv_cpu, ...m.app_cpu])].filter((c) => c >= 0).sort((a, b) => a - b))
		$("#by-core").append(option(core, `core ${core}`));
	data.connections.forEach((name, i) => $("#by-connection").append(option(i, name)));
	if (data.n_connections > data.connections.length) {
		$("#which-connections").hidden = false;
		$("#which-connections").textContent = `The filter has the ${number(data.connections.length)} busiest of ${number(data.n_connections)} connections; `
			+ "for another: --slow peer:ADDRESS:PORT.";
	}

	function refilter() {
		for (const key of Object.keys(filter)) filter[key] = $(`#by-${key}`).value;
		list = slow.filter(shown);
		if (order) list.sort((a, b) => order.sign * compare(order.of(a), order.of(b)));
		const any = Object.values(filter).some((v) => v !== "");
		$("#shown").textContent = `${number(list.length)} of ${number(slow.length)} slow ${thing}s${any ? " match the filters" : ""}`;
		page = 0;
		fillList();
		focused = null;
		balloons?.redraw(false);
	}

	/* ---- the balloon chart */
	let balloons = null, focused = null;
	const spread = Math.min(1, Math.sqrt(40 / Math.max(slow.length, 1)));
	const radius = (t) => 4 + 9 * Math.max(spread, 0.25) * Math.sqrt(Math.max(t.deviation, 0) / most);
	function drawBalloons(u) {
		const ctx = u.ctx, ratio = devicePixelRatio, box = u.bbox;
		const x = (value) => u.valToPos(value, "x", true), y = (value) => u.valToPos(Math.max(value, 1), "y", true);
		ctx.save();
		ctx.beginPath();
		ctx.rect(box.left, box.top, box.width, box.height);
		ctx.clip();
		// Points that fall on one pixel are drawn once: 100,000 stay fluid.
		const seen = new Uint8Array((Math.ceil(box.width) + 1) * (Math.ceil(box.height) + 1)), wide = Math.ceil(box.width) + 1;
		const from = u.scales.x.min, to = u.scales.x.max, dot = Math.round((n > 5000 ? 2 : n > 500 ? 3 : 4) * ratio);
		const ink = colourOf("--ink"), colours = data.causes.map((cause) => colourOf(`--c-${cause.colour.slice(1)}`));
		ctx.fillStyle = colourOf("--c-9A9A9A");
		for (let i = 0; i < n; i++) {
			if (m.id[i] < from || m.id[i] > to || slowOf.has(m.id[i]) || !kept(i)) continue;
			const left = Math.round(x(m.id[i]) - box.left), top = Math.round(y(m.latency[i]) - box.top), at = top * wide + left;
			if (left < 0 || top < 0 || left >= wide || seen[at]) continue;
			seen[at] = 1;
			ctx.fillRect(box.left + left, box.top + top, dot, dot);
		}
		for (const t of [...list].sort((a, b) => b.deviation - a.deviation)) {
			const r = radius(t) * ratio, cx = x(t.id), cy = y(m.latency[t.row]), cause = data.causes[t.top];
			ctx.beginPath();
			shape(cause?.marker).forEach(([px, py], i) => (i ? ctx.lineTo(cx + r * px, cy + r * py) : ctx.moveTo(cx + r * px, cy + r * py)));
			ctx.closePath();
			ctx.globalAlpha = 0.75;
			ctx.fillStyle = colours[t.top] ?? ink;
			ctx.fill();
			ctx.globalAlpha = 1;
			ctx.lineWidth = t === focused || t === open ? 3 * ratio : 0.6 * ratio;
			ctx.strokeStyle = ink;
			ctx.stroke();
		}
		ctx.restore();
	}
	const grow = (low, high) => [Math.max(low, 1) / 1.4, high * 1.8];
	const size = (where, height) => ({width: Math.max($(where).clientWidth, 240), height});
	function makeBalloons() {
		const low = m.latency.reduce((a, b) => Math.min(a, b), Infinity), high = m.latency.reduce((a, b) => Math.max(a, b), 1);
		balloons = new uPlot({
			...size("#balloon", 360),
			scales: {x: {time: false, range: (u, from, to) => [from - 0.012 * (to - from || 1), to + 0.012 * (to - from || 1)]}, y: {distr: 3, range: () => grow(low, high)}},
			axes: [{...axisLook, label: `${thing}, in order of arrival`, values: (u, ticks) => ticks.map(number)},
				{...logAxis, label: "latency", values: latencyTicks, size: 58}],
			series: [{}, {paths: () => null, points: {show: false}}],
			legend: {show: false},
			cursor: {drag: {x: true, y: false}, points: {show: false}},
			hooks: {draw: [drawBalloons]},
		}, [m.id, m.latency], $("#balloon"));
		const place = (t) => [balloons.valToPos(t.id, "x"), balloons.valToPos(Math.max(m.latency[t.row], 1), "y")];
		const near = (event) => {
			const area = balloons.over.getBoundingClientRect();
			let best = null, least = Infinity;
			for (const t of list) {
				const [px, py] = place(t), away = Math.hypot(px - (event.clientX - area.left), py - (event.clientY - area.top));
				if (away < Math.max(radius(t) + 3, 12) && away < least) [best, least] = [t, away];
			}
			return best;
		};
		balloons.over.addEventListener("click", (event) => { const t = near(event); if (t) show(t.id); });
		balloons.over.addEventListener("mousemove", (event) => {
			const t = near(event);
			balloons.over.classList.toggle("on-balloon", !!t);
			$("#hover").textContent = t ? describe(t) : "";
		});
		$("#balloon").chart = balloons; // for tests
		$("#balloon").positionOf = (id) => { // for tests: where a balloon is in the window
			const area = balloons.over.getBoundingClientRect(), [px, py] = place(slowOf.get(id));
			return [area.left + px, area.top + py];
		};
	}
	const describe = (t) => `${thing} ${t.id}: ${duration(m.latency[t.row])}, ${data.causes[t.top]?.name ?? "unexplained"}`
		+ (t.sums.size ? ` +${duration(t.sums.get(t.top))}` : "");
	$("#balloon").addEventListener("keydown", (event) => {
		if (event.altKey || event.ctrlKey || event.metaKey) return; // the browser's: Alt and an arrow go back
		const inOrder = [...list].sort((a, b) => a.id - b.id);
		if (!inOrder.length) return;
		const at = inOrder.indexOf(focused);
		const to = {ArrowRight: at + 1, ArrowLeft: at < 0 ? inOrder.length - 1 : at - 1, Home: 0, End: inOrder.length - 1}[event.key];
		if (to !== undefined) {
			focused = inOrder[Math.min(Math.max(to, 0), inOrder.length - 1)];
			$("#hover").textContent = describe(focused);
			say(describe(focused));
			balloons.redraw(false);
			event.preventDefault();
		} else if ((event.key === "Enter" || event.key === " ") && focused) {
			show(focused.id);
			event.preventDefault();
		}
	});

	/* ---- the list of slow messages */
	const PAGE = 12;
	let page = 0, order = null;
	const topName = (t) => data.causes[t.top]?.name ?? "";
	const COLUMNS = [(t) => t.id, (t) => m.latency[t.row], (t) => t.deviation, topName, (t) => m.recv_cpu[t.row] * 1e6 + m.app_cpu[t.row]];
	const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", {numeric: true}) : a - b);
	function fillList() {
		const body = $("#list tbody");
		body.replaceChildren(...list.slice(page * PAGE, (page + 1) * PAGE).map((t) => {
			const button = element("button", {type: "button", textContent: t.id, ariaLabel: `${thing} ${t.id}`});
			button.addEventListener("click", () => show(t.id));
			const cell = element("td", {className: "text"});
			if (t.top >= 0) cell.append(icon(data.causes[t.top]), data.causes[t.top].name);
			const cores = m.recv_cpu[t.row] === m.app_cpu[t.row] ? `${m.app_cpu[t.row]}` : `${m.recv_cpu[t.row]} to ${m.app_cpu[t.row]}`;
			return element("tr", {}, element("td", {}, button), element("td", {className: "n", textContent: duration(m.latency[t.row])}),
				element("td", {className: "n", textContent: `+${duration(t.deviation)}`}), cell, element("td", {className: "n cores", textContent: cores.replaceAll("-1", "?")}));
		}));
		const pages = Math.max(Math.ceil(list.length / PAGE), 1);
		$("#page").textContent = `page ${page + 1} of ${pages}`;
		$("#before").disabled = page === 0;
		$("#after").disabled = page + 1 >= pages;
	}
	$("#before").addEventListener("click", () => { page--; fillList(); });
	$("#after").addEventListener("click", () => { page++; fillList(); });

	/* ---- one message */
	const amount = (text, value = "") => {
		const cell = element("td", {className: "n", textContent: text});
		cell.dataset.v = value;
		return cell;
	};
	let open = null, life = null, zoom = 1, cameFrom = null;
	const beside = matchMedia("(min-width: 68rem)"); // as in page.css
	/* The chart makes room for a message beside it. */
	function fitStage() {
		$("#stage").classList.toggle("open", !$("#one").hidden);
		balloons?.setSize(size("#balloon", 360));
	}
	function show(id, focus = true) {
		const t = slowOf.get(id);
		if (!t) return;
		if (!open) cameFrom = document.activeElement === document.body ? null : document.activeElement;
		open = t;
		const at = t.row, place = m.connection[at] < 0 ? "" : `, ${data.connections[m.connection[at]]}`;
		$("#one h3").textContent = `${thing[0].toUpperCase()}${thing.slice(1)} ${t.id}: ${duration(m.latency[at])} (usual ${duration(t.usual)})`;
		const covered = t.coverage === null ? "" : `, ${Math.round(100 * t.coverage)}% of it explained`;
		$("#one-facts").textContent = `${t.top === notSlower ? "within measurement noise" : `+${duration(t.deviation)}${covered}`}; `
			+ `${(m.first_us[at] / 1e6).toFixed(6)} s after the first ${thing}${place}`;
		$("#why tbody").replaceChildren(...(t.why ?? t.brief).map(([cause, ns, detail, observed, usual, cpu, other, path]) => {
			const name = element("td", {className: "text"});
			if (cause >= 0) name.append(icon(data.causes[cause]), data.causes[cause].name);
			const through = data.texts[path];
			const what = element("td", {className: "text", textContent: t.why ? data.texts[detail] + (through ? `, in ${through}` : "") : ""});
			if (other >= 0) {
				what.append("; ");
				if (slowOf.has(other)) {
					const link = element("a", {href: `#message-${other}`, textContent: `message ${other}`});
					what.append(link);
				} else what.append(`message ${other}`);
			}
			return element("tr", {}, name, amount(`+${duration(ns)}`, ns), what, amount(duration(observed), observed), amount(duration(usual), usual),
				amount(cpu >= 0 ? cpu : "?", cpu));
		}));
		for (const head of $("#why").tHead.rows[0].cells) head.removeAttribute("aria-sort");
		$("#why").hidden = !(t.why ?? t.brief).length;
		$("#why-brief").hidden = !!t.why;
		$("#why-brief").textContent = `What exactly it was is not in this file. To see it: nsight-report show ${data.name} ${t.id}`;
		const source = document.getElementById(`lifetime-${t.id}`);
		life = source ? JSON.parse(source.textContent) : null;
		zoom = 1;
		$("#one").hidden = false; // before anything in it is measured
		fitStage();
		$("#one-life").hidden = !life;
		$("#one-none").hidden = !!life;
		if (life) {
			redrawLife();
			$("#hands-part").hidden = !life.hands.length;
			$("#hands tbody").replaceChildren(...drawHands(life.hands));
			$("#ways-part").hidden = !life.ways.length;
			$("#ways tbody").replaceChildren(...drawWays(life.ways));
			$("#tree").replaceChildren(life.tree.length ? drawTree(life.tree) : "No call is known.");
			$("#left-out").textContent = life.left_out.length ? `Not drawn: ${life.left_out.join(", ")}.` : "";
		} else $("#one-none").textContent = `The lifetime of this ${thing} is not in this file, which holds those of the slowest ${thing}s and of the three that each cause delayed most. `
			+ `To see it: nsight-report ${data.name} --slow id:${t.id} -o DIR (or --lifetimes N for more ${thing}s)`;
		$("#box").textContent = "";
		if (location.hash !== `#message-${t.id}`) history.replaceState(null, "", `#message-${t.id}`);
		balloons?.redraw(false);
		if (focus) {
			$("#one h3").focus({preventScroll: true});
			$("#one").scrollTop = 0;
			$("#one").scrollIntoView({block: beside.matches ? "nearest" : "start"});
		}
	}
	function redrawLife() {
		$("#lifetime").replaceChildren(drawLifetime(life, Math.round(Math.max($("#lifetime").clientWidth - 2, 320) * zoom)));
		$("#zoom").textContent = zoom === 1 ? "" : `${zoom} times`;
	}
	const zoomTo = (value) => {
		const where = $("#lifetime"), centre = (where.scrollLeft + where.clientWidth / 2) / Math.max(where.scrollWidth, 1);
		zoom = Math.min(Math.max(value, 1), 64);
		redrawLife();
		where.scrollLeft = centre * where.scrollWidth - where.clientWidth / 2;
	};
	$("#zoom-in").addEventListener("click", () => zoomTo(zoom * 2));
	$("#zoom-out").addEventListener("click", () => zoomTo(zoom / 2));
	$("#zoom-all").addEventListener("click", () => zoomTo(1));
	$("#lifetime").addEventListener("click", (event) => {
		const box = event.target.dataset?.box;
		if (box !== undefined) $("#box").textContent = boxText(life, life.boxes[+box]);
	});
	$("#close").addEventListener("click", close);
	function close() {
		$("#one").hidden = true;
		fitStage();
		open = null;
		history.replaceState(null, "", location.pathname + location.search);
		balloons?.redraw(false);
		(cameFrom && document.contains(cameFrom) ? cameFrom : $("#balloon")).focus();
	}
	document.addEventListener("keydown", (event) => { if (event.key === "Escape" && open) close(); });
	const fromHash = () => {
		const found = /^#message-(\d+)$/.exec(location.hash);
		if (found) show(+found[1]);
	};
	addEventListener("hashchange", fromHash);

	/* ---- causes: a box plot in the table; tables sort */
	const scale = boxScale(data.causes.flatMap((c) => (c.box.length ? c.box : [])));
	$("#cause-table th.box")?.append(boxAxis(scale));
	for (const row of document.querySelectorAll("#cause-table tbody tr")) {
		const cause = data.causes.find((c) => c.name === row.dataset.cause);
		if (!cause?.box.length) continue;
		row.querySelector(".box").append(boxPlot(cause, scale));
		const button = element("button", {type: "button", className: "as-text"}, icon(cause), row.querySelector(".name").textContent);
		button.title = `show only ${thing}s with this cause`;
		button.addEventListener("click", () => {
			$("#by-cause").value = data.causes.indexOf(cause);
			refilter();
			$("#explore").scrollIntoView();
			$("#by-cause").focus();
		});
		row.querySelector(".name").replaceChildren(button);
	}
	for (const table of document.querySelectorAll("table.sorts")) makeSortable(table, say);
	$("#unfold")?.addEventListener("click", (event) => {
		$("#cause-table").classList.remove("folded");
		event.target.parentElement.remove();
	});
	makeSortable($("#list"), say, (column, sign) => {
		order = {of: COLUMNS[column], sign};
		refilter();
	}, (column) => column !== 3);

	/* ---- the distribution, of one or two captures */
	let distribution = null;
	function makeDistribution() {
		const tables = data.captures.filter((c) => c.n).map((c) => [c.latency, c.percent.map((p) => Math.max(100 - p + 100 / c.n, 1e-6))]);
		if (!tables.length) return;
		const STYLES = [["--c-0072B2", []], ["--c-D55E00", [8, 4]]];
		// Equal latencies within one capture are one point: x must grow.
		const joined = uPlot.join(tables.map(([xs, ys]) => {
			const keep = xs.map((v, i) => i === 0 || v !== xs[i - 1]);
			return [xs.filter((_, i) => keep[i]), ys.filter((_, i) => keep[i])];
		}));
		distribution = new uPlot({
			...size("#distribution", 300),
			scales: {x: {time: false, distr: 3}, y: {distr: 3, range: (u, low) => [low / 1.5, 130]}},
			axes: [{...logAxis, label: "latency", values: latencyTicks}, {...logAxis, label: `${thing}s at least as slow`, values: percentTicks, size: 58}],
			series: [{value: (u, v) => duration(v), label: "latency"}, ...data.captures.filter((c) => c.n).map((c, i) => ({
				label: `${c.name} (n=${number(c.n)})`, stroke: () => colourOf(STYLES[i][0]), dash: STYLES[i][1], width: 2, spanGaps: true, points: {show: false},
				paths: uPlot.paths.stepped({align: -1}), // as in the figure: no message lies between two
				value: (u, v) => (v == null ? "-" : `${v.toPrecision(3)} % are slower`),
			}))],
			legend: {live: true, markers: {stroke: (u, i) => `var(${STYLES[i - 1][0]})`}},
		}, joined, $("#distribution"));
		$("#distribution").chart = distribution; // for tests
	}

	/* ---- begin */
	for (const key of Object.keys(filter)) $(`#by-${key}`).addEventListener("change", refilter);
	$("#filters").addEventListener("reset", () => setTimeout(refilter));
	$("#whole").addEventListener("click", () => balloons.setScale("x", {min: m.id[0], max: m.id[n - 1]}));
	const used = [...new Set(slow.map((t) => t.top))].filter((c) => c >= 0).sort((a, b) => a - b).slice(0, 24);
	$("#legend").append(...used.map((c) => element("li", {}, icon(data.causes[c]), `${data.causes[c].name} (${number(slow.filter((t) => t.top === c).length)})`)));
	if (n) {
		makeBalloons();
		makeDistribution();
		// The library names neither; the charts around the canvases have names.
		for (const canvas of document.querySelectorAll(".u-over, canvas")) canvas.setAttribute("aria-hidden", "true");
		for (const values of document.querySelectorAll(".u-legend")) values.setAttribute("aria-label", "values at the pointer");
	}
	refilter();
	let waiting = 0;
	const recolour = () => {
		$("#scheme").ariaPressed = isDark();
		for (const chart of [balloons, distribution]) chart?.redraw(false);
	};
	$("#scheme").addEventListener("click", () => {
		root.dataset.scheme = isDark() ? "light" : "dark";
		try { localStorage.setItem("nsight-scheme", root.dataset.scheme); } catch { /* as in begin.js */ }
		recolour();
	});
	dark.addEventListener("change", recolour);
	recolour();
	addEventListener("resize", () => {
		clearTimeout(waiting);
		waiting = setTimeout(() => {
			balloons?.setSize(size("#balloon", 360));
			distribution?.setSize(size("#distribution", 300));
			if (life && open) redrawLife();
		}, 100);
	});
	fromHash();
	document.body.dataset.ready = "yes";
})();
