package dashboard

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/admin"
)

// usesShown is how many keys of limits a page shows.
const usesShown = 100

// limitRow is a limit of a topic.
type limitRow struct {
	admin.LimitStatus
	Chips   []chip
	AtLimit int   // keys of which no event may start now
	Waiting int64 // events that wait for them
	Chart   chart
}

// useRow is a key of a limit.
type useRow struct {
	admin.LimitUse
	Limit admin.LimitStatus
}

func (p *Page) limitRows(limits []admin.LimitStatus) []limitRow {
	var rows []limitRow
	for _, l := range limits {
		full, waiting := l.Full()
		rows = append(rows, limitRow{l, limitChips(l), len(full), waiting,
			newChart("Waiting at the limit", "", p.history.of(ofLimit(l.LimitScope), seriesDue))})
	}
	return rows
}

func limitChips(l admin.LimitStatus) []chip {
	var chips []chip
	if l.Set != nil {
		until := "until it is reset"
		if !l.Set.Until.IsZero() {
			until = "until " + l.Set.Until.Format("2006-01-02 15:04 UTC")
		}
		chips = append(chips, chip{"warn", "set", fmt.Sprintf("%s has set %s, %s. The YAML says %s.", l.Set.Who,
			l.Set.LimitValue, until, l.Declared)})
	}
	if l.Partial {
		chips = append(chips, chip{"info", "not all counted", "There is more in use, or more waits, than the page counts."})
	}
	return chips
}

// fullChips says for a topic that events wait at its limits.
func fullChips(limits []admin.LimitStatus) []chip {
	var why []string
	for _, l := range limits {
		if _, waiting := l.Full(); waiting > 0 {
			text := plural(waiting, "event waits", "events wait") + " at " + l.Value.String()
			if l.Per != "" {
				text += " per " + shortText(l.Per)
			}
			why = append(why, text)
		}
	}
	if why == nil {
		return nil
	}
	return []chip{{"info", "at a limit", strings.Join(why, "; ")}}
}

// atLimit sums up all limits. It does not say how many events wait, because one may wait at several limits.
func atLimit(limits []admin.LimitStatus) string {
	var keys int64
	for _, l := range limits {
		for _, use := range l.Keys {
			if use.Full && use.Waiting > 0 {
				keys++
			}
		}
	}
	if keys == 0 {
		return "No event waits at a limit"
	}
	return "Events of " + plural(keys, "key wait at its limit", "keys wait at their limits")
}

// limitsOfTopic returns those of a topic.
func limitsOfTopic(limits []admin.LimitStatus, namespace, topic string) []admin.LimitStatus {
	return slices.DeleteFunc(slices.Clone(limits), func(l admin.LimitStatus) bool {
		return l.Namespace != namespace || l.Topic != topic
	})
}

// limitsBody is what the page of the limits shows: of all topics with the keys at their limit, or of one with all keys
// that are in use.
type limitsBody struct {
	Filter filterForm
	Limits []limitRow
	Uses   []useRow
	Total  int // keys, shown or not
}

func (p *Page) showLimits(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	filter, err := filterOf(query)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	o, f, err := p.current(r, frame{Name: "limits", Title: "Limits"})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	body := limitsBody{Filter: p.filterForm(query)}
	body.Filter.Topics = nil
	for _, l := range o.Limits {
		if name := l.Namespace + "/" + l.Topic; !slices.Contains(body.Filter.Topics, name) {
			body.Filter.Topics = append(body.Filter.Topics, name)
		}
	}
	limits := o.Limits
	if filter.Namespace != "" {
		limits = limitsOfTopic(limits, filter.Namespace, filter.Topic)
	}
	body.Limits = p.limitRows(limits)
	for _, l := range limits {
		for _, use := range l.Keys {
			if use.Full || filter.Namespace != "" {
				body.Uses = append(body.Uses, useRow{use, l})
			}
		}
	}
	slices.SortStableFunc(body.Uses, func(x, y useRow) int {
		if x.Full != y.Full {
			return map[bool]int{true: -1, false: 1}[x.Full]
		}
		return cmp.Or(cmp.Compare(y.Waiting, x.Waiting), cmp.Compare(y.Running, x.Running))
	})
	body.Total = len(body.Uses)
	body.Uses = body.Uses[:min(body.Total, usesShown)]
	f.Body = body
	p.show(w, r, http.StatusOK, f)
}
