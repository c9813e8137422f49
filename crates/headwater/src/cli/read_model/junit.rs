//! Test results in the JUnit format.

use super::test::TestResult;

pub(super) fn render(results: &[TestResult]) -> String {
    let failures = results.iter().filter(|result| !result.failures.is_empty()).count();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"read models\" tests=\"{}\" failures=\"{failures}\">\n",
        results.len()
    );
    for TestResult { file, name, failures, seconds } in results {
        let (file, name) = (escape(file), escape(name));
        text.push_str(&format!("<testcase classname=\"{file}\" name=\"{name}\" time=\"{seconds:.3}\">"));
        if let Some(first) = failures.first() {
            let (first, all) = (escape(first), escape(&failures.join("\n")));
            text.push_str(&format!("\n<failure message=\"{first}\">{all}</failure>\n"));
        }
        text.push_str("</testcase>\n");
    }
    text + "</testsuite>\n</testsuites>\n"
}

/// For text and attributes; XML has no way to write most control characters.
fn escape(text: &str) -> String {
    let allowed = text.chars().filter(|character| *character >= ' ' || matches!(character, '\n' | '\t'));
    let escaped = allowed.map(|character| match character {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        other => other.to_string(),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_failures_are_escaped() {
        let result = |name: &str, failures: &[&str]| TestResult {
            file: "a.yaml".into(),
            name: name.into(),
            failures: failures.iter().map(|text| (*text).to_owned()).collect(),
            seconds: 0.0125,
        };
        let text =
            render(&[result("fine", &[]), result("<a> & \"b\"\u{1}", &["n: expected 1, found {\"x\":2}", "more"])]);
        assert!(text.contains("tests=\"2\" failures=\"1\""), "{text}");
        assert!(
            text.contains("<testcase classname=\"a.yaml\" name=\"fine\" time=\"0.013\"></testcase>")
                || text.contains("time=\"0.012\"></testcase>"),
            "{text}"
        );
        assert!(text.contains("name=\"&lt;a&gt; &amp; &quot;b&quot;\""), "{text}");
        assert!(text.contains("found {&quot;x&quot;:2}\nmore</failure>"), "{text}");
    }
}
