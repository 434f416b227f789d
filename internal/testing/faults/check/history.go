package check

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// nearby is how many faults History shows before the end of what happened to an event.
const nearby = 12

// History returns the shortest history of an event: each line about it, the latest faults that were under way meanwhile, and
// when the processes that handled it stood still, in the order of time.
func History(history io.Reader, id ID) ([]string, error) {
	var lines, faults []Line
	txs := make(map[string]bool)
	var stills []Line
	seenBy := make(map[string]bool)
	if _, err := Lines(history, func(l Line) {
		switch {
		case l.Kind == Fault || l.Kind == Moved:
			faults = append(faults, l)
		case l.Kind == Still:
			stills = append(stills, l)
		case l.Kind == Tx && (slices.Contains(l.Events, id) || txs[l.Tx]):
			txs[l.Tx] = true
			lines = append(lines, l)
		case l.Event == id:
			lines = append(lines, l)
			seenBy[l.Who] = true
		}
	}); err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, nil
	}
	from, to := lines[0].At, lines[len(lines)-1].At
	around := int64(5 * time.Second / time.Microsecond)
	far := func(l Line) bool { return l.At < from-around || l.At > to+around }
	faults = slices.DeleteFunc(faults, far)
	stills = slices.DeleteFunc(stills, func(l Line) bool { return far(l) || !seenBy[l.Who] })
	lines = append(lines, faults[max(0, len(faults)-nearby):]...)
	lines = append(lines, stills[max(0, len(stills)-nearby):]...)
	slices.SortStableFunc(lines, func(a, b Line) int { return int(a.At - b.At) })
	text := make([]string, len(lines))
	for i, l := range lines {
		text[i] = l.describe(from)
	}
	return text, nil
}

var verbs = map[string]string{Start: "starts", Done: "has done", Fail: "fails with", Gone: "refuses", Told: "is told to let go of"}

func (l Line) describe(from int64) string {
	at := fmt.Sprintf("%+10.3f s  %-10s ", float64(l.At-from)/1e6, l.Who)
	switch l.Kind {
	case Tx:
		return at + fmt.Sprintf("transaction %s with %d events: %s", l.Tx, len(l.Events), l.Say)
	case Call:
		if l.Call > 0 {
			at += fmt.Sprintf("call %d: ", l.Call)
		}
		return at + fmt.Sprintf("%s %s it, attempt %d: %s %s number %d", l.Handler, verbs[l.Say], l.Attempt, l.Topic, l.Item, l.N)
	}
	if l.For > 0 {
		return at + fmt.Sprintf("%s for %.3f s: %s", l.Kind, float64(l.For)/1e6, l.Say)
	}
	return at + l.Kind + ": " + l.Say
}
