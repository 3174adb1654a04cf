/* SPDX-License-Identifier: GPL-2.0-only */
/* Tables whose headings sort: numbers (data-v, or the text) largest first, other text from a to z; again: the other way. */
"use strict";

const cellValue = (cell) => cell.dataset.v ?? cell.textContent.trim();
const cellNumber = (text) => (text === "" ? NaN : Number(text.replaceAll(",", "")));

/* Rows of the body by one column. Cells without a number come last. */
function sortRows(table, column, sign) {
	const body = table.tBodies[0], rows = [...body.rows].map((row) => [row, cellValue(row.cells[column])]);
	const numeric = isNumeric(table, column);
	const order = ([, a], [, b]) => {
		if (!numeric) return sign * a.localeCompare(b, "en", {numeric: true});
		const [x, y] = [cellNumber(a), cellNumber(b)];
		return isNaN(x) - isNaN(y) || sign * (x - y) || 0;
	};
	body.append(...rows.sort(order).map(([row]) => row));
}

function isNumeric(table, column) {
	const values = [...table.tBodies[0].rows].map((row) => cellValue(row.cells[column])).filter((text) => text !== "");
	return values.length > 0 && values.every((text) => !isNaN(cellNumber(text)));
}

/* Buttons in the headings; `sort(column, sign)` does it, 1 ascending, -1 descending; `say` tells it. */
function makeSortable(table, say, sort = (column, sign) => sortRows(table, column, sign), numeric = (column) => isNumeric(table, column)) {
	const heads = [...table.tHead.rows[0].cells];
	heads.forEach((head, column) => {
		if (head.classList.contains("unsorted")) return;
		const name = head.textContent, button = element("button", {type: "button", textContent: name});
		button.addEventListener("click", () => {
			const before = head.ariaSort, down = before ? before === "ascending" : numeric(column);
			for (const other of heads) other.removeAttribute("aria-sort");
			head.ariaSort = down ? "descending" : "ascending";
			sort(column, down ? -1 : 1);
			say(`sorted by ${name}, ${head.ariaSort}`);
		});
		head.replaceChildren(button);
	});
}
