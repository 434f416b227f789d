package browsertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// large has n topics of ten fields.
func large(n int) string {
	var b strings.Builder
	b.WriteString("version: \"1\"\npackage: events\ntypes:\n  outcome: {enum: [completed, failed]}\nnamespaces:\n  shop:\n    topics:\n")
	for i := range n {
		fmt.Fprintf(&b, `      thing_%d_happened:
        doc: is emitted once per thing, when it happens.
        tenant: tenant_id
        dedupe_key: "{tenant_id}/{thing_id}/{request_id}"
        partition_key: "{thing_id}"
        payload:
          tenant_id: uuid
          thing_id: uuid
          request_id: uuid
          outcome: outcome
          name: {type: string, max_len: 128}
          note: string?
          tags: "[]string"
          count: {type: int64, min: 0}
          ratio: float64
          happened_at: timestamp
`, i)
	}
	return b.String()
}

// The target is 100 ms from a key to the findings of 50 topics. How long it takes depends on what else the machine does,
// so the test measures the processor time of the browser for a key, with all that it draws, and fails if that is more by
// an order of magnitude. The log has both figures.
func TestFindingsComeSoon(t *testing.T) { // measures
	tb := open(t, fragment(t, large(50), ""))
	tb.untilText("#count", "No findings")
	tb.Click("#tab-sql") // the code of 50 topics takes longer than all else
	tb.untilText("#viewer", "CREATE TABLE")
	value[bool](tb, `(() => {
		window.times = [];
		let key = 0;
		addEventListener("keydown", (e) => { key = e.timeStamp; }, true);
		const seen = new MutationObserver(() => { times.push(performance.now() - key); window.wake?.(); });
		seen.observe(document.querySelector("#findings ul"), {childList: true});
		return true;
	})()`)
	tb.after("tenant: tenant_id")
	const n = 20
	before, known := processorTime(t)
	for i := range n {
		if i%2 == 0 {
			tb.Press("x")
		} else {
			tb.Press(kb.Backspace)
		}
		value[bool](tb, fmt.Sprintf(`new Promise((done) => {
			window.wake = () => { if (times.length === %d) done(true); };
			wake();
		})`, i+1)) // to ask again and again would be measured, too
	}
	after, _ := processorTime(t)
	times := value[[]float64](tb, "times")
	slices.Sort(times)
	t.Logf("from a key to its findings, 50 topics, %d keys: shortest %.0f ms, median %.0f ms, longest %.0f ms; "+
		"%s of processor time per key", n, times[0], times[n/2], times[n-1], (after-before)/n)
	if known {
		require.Less(t, (after-before)/n, time.Second)
	}
}
