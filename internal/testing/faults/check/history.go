package check

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// nearby is how many faults History shows before the end of what happened to an event.
const nearby = 12

// History returns the shortest history of an event: each line about it, and the latest faults that were under way meanwhile,
// in the order of time.
func History(history io.Reader, id ID) ([]string, error) {
	var lines, faults []Line
	txs := make(map[string]bool)
	if _, err := Lines(history, func(l Line) {
		switch {
		case l.Kind == Fault:
			faults = append(faults, l)
		case l.Kind == Tx && (slices.Contains(l.Events, id) || txs[l.Tx]):
			txs[l.Tx] = true
			lines = append(lines, l)
		case l.Event == id:
			lines = append(lines, l)
		}
	}); err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, nil
	}
	from, to := lines[0].At, lines[len(lines)-1].At
	around := int64(5 * time.Second / time.Microsecond)
	faults = slices.DeleteFunc(faults, func(l Line) bool { return l.At < from-around || l.At > to+around })
	lines = append(lines, faults[max(0, len(faults)-nearby):]...)
	slices.SortStableFunc(lines, func(a, b Line) int { return int(a.At - b.At) })
	text := make([]string, len(lines))
	for i, l := range lines {
		text[i] = l.describe(from)
	}
	return text, nil
}

var verbs = map[string]string{Start: "starts", Done: "has done", Fail: "fails with", Gone: "refuses"}

func (l Line) describe(from int64) string {
	at := fmt.Sprintf("%+10.3f s  %-10s ", float64(l.At-from)/1e6, l.Who)
	switch l.Kind {
	case Tx:
		return at + fmt.Sprintf("transaction %s with %d events: %s", l.Tx, len(l.Events), l.Say)
	case Call:
		return at + fmt.Sprintf("%s %s it, attempt %d: %s %s number %d", l.Handler, verbs[l.Say], l.Attempt, l.Topic, l.Item, l.N)
	}
	return at + l.Kind + ": " + l.Say
}
