//! Tables people can read: columns as wide as what is in them.

/// The last column is not padded.
pub(crate) fn render_table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let rows = rows.iter().map(|row| line(std::array::from_fn(|at| row[at].as_str())));
    std::iter::once(line(head)).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["order_summary".to_owned(), "7".to_owned()], ["é".to_owned(), "12".to_owned()]];
        let expected = "MODEL          WAITING\norder_summary  7\né              12\n";
        assert_eq!(super::render_table(["MODEL", "WAITING"], &rows), expected);
    }
}
