//! Text tables.

/// Columns are as wide as their widest cell; the last one is not padded.
pub(crate) fn render_table(head: &[&str], rows: &[impl AsRef<[String]>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let heading = line(&mut head.iter().copied());
    let rows = rows.iter().map(|row| line(&mut row.as_ref().iter().map(String::as_str)));
    std::iter::once(heading).chain(rows).collect()
}

/// `1 event`, `2 events`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_fit_their_widest_cell() {
        let rows = [["order_summary".to_owned(), "7".to_owned()], ["é".to_owned(), "12".to_owned()]];
        let expected = "MODEL          WAITING\norder_summary  7\né              12\n";
        assert_eq!(super::render_table(&["MODEL", "WAITING"], &rows), expected);
    }
}
