package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// cells makes cells of names and values in turns. A value of null makes none.
func cells(pairs ...string) (all []statements.Cell) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != null {
			all = append(all, statements.Cell{Name: pairs[i], Value: pairs[i+1]})
		}
	}
	return all
}

func array(values []string) string {
	for i, v := range values {
		if v == "" {
			values[i] = `""`
		}
	}
	return "{" + strings.Join(values, ",") + "}"
}

// turnWorld makes a case of claim_turns: events that have turns, the limits of their topics, and what is used of the keys.
// In rows that are drawn each for itself these seldom belong together.
func (w *worlds) turnWorld() statements.Case {
	topics := []string{"x"}
	if w.chance(0.25) {
		topics = append(topics, "y")
	}
	var c statements.Case
	var ids, leased []string
	var turns [][2]string // lane and turn
	for _, i := range w.r.Perm(9)[:1+w.r.IntN(8)] {
		id, topic := "#"+strconv.Itoa(i+1), topics[w.r.IntN(len(topics))]
		turn := w.pick("t/k1", "t/k1", "t/k1", "t/k2", "t/k2", "t/#7", "t", "t/k1/k2", "s/k1")
		lane := w.pick("turns("+topic+")", "turns("+topic+")", "turns("+topic+")", "turns("+topic+")", "turns("+topic+")", "0")
		due, tenant := w.pick("now-3h", "now-3h", "now-2h", "now-1h", null, "now+1h"), w.pick(null, null, "#7", "#8")
		if turn == "t/#7" && w.chance(0.8) {
			tenant = "#7"
		}
		until, by, attempts := null, null, w.pick(null, null, "1", "2", "3")
		if w.chance(0.4) {
			until, by = w.pick("now+1h", "now-1h"), w.pick("#21", "#22", null)
			leased = append(leased, id)
		}
		c.Rows = append(c.Rows, statements.Row{Table: "queue", Cells: cells("id", id, "namespace", w.pick("a", "a", "a", "a", "a", "a", "b"), "topic", topic,
			"lane", lane, "turn", turn, "next_attempt_at", due, "tenant_id", tenant, "locked_until", until, "locked_by", by,
			"attempts", attempts, "max_attempts", w.pick(null, null, "3", "2"), "version", w.pick(null, null, "1", "2", "3"),
			"failures", w.pick(null, null, null, `[{"error":"e1"}]`, `[1,2,3,4,{"error":"e5"}]`))})
		ids, turns = append(ids, id), append(turns, [2]string{lane, turn})
	}
	for _, topic := range topics {
		c.Rows = append(c.Rows, w.limitsOf(topic, ids, leased)...)
	}
	if w.chance(0.3) {
		c.Rows = append(c.Rows, statements.Row{Table: "events", Cells: cells("id", ids[0], "namespace", "a", "topic", "x", "payload", "{}")})
	}
	slices.SortStableFunc(c.Rows, func(a, b statements.Row) int { return strings.Compare(a.Table, b.Table) })
	c.Args = w.turnCall(topics, ids, turns)
	return c
}

// limitsOf makes limits of a topic, and the rows of some of their keys.
func (w *worlds) limitsOf(topic string, ids, leased []string) (rows []statements.Row) {
	count := w.r.IntN(4)
	for nth, per := range w.r.Perm(3)[:count] {
		name, part := [...]string{"", "tenant", "k"}[per], [...]string{"0", "1", w.pick("1", "1", "2")}[per]
		rate, period := null, null
		if w.chance(0.4) {
			rate, period = w.pick("1", "2", "3"), "1200s"
			if w.chance(0.3) { // of these, claims take some ahead of workers
				rate = w.pick("120000", "250000")
			}
		}
		limit := cells("namespace", "a", "topic", topic, "per", name, "counted_as", w.pick(topic, topic, topic, "x"), "nth", strconv.Itoa(nth+1), "tag", "t",
			"part", part, "concurrency", w.pick(null, "1", "2", "3", "4"), "rate", rate, "period", period)
		if w.chance(0.15) {
			limit = append(limit, cells("set_concurrency", w.pick(null, "1", "2", "9"), "set_until", w.pick("now+1h", "now-1h"))...)
		}
		rows = append(rows, statements.Row{Table: "limits", Cells: limit})
		keys := []string{"k1", "k2", "#7", ""}
		if part == "0" {
			keys = []string{""}
		}
		for _, key := range keys {
			if !w.chance(0.6) {
				continue
			}
			var running []string
			for _, id := range append(leased, "#30", ids[0]) {
				if w.chance(0.45) {
					running = append(running, id)
				}
			}
			at, starts := "{}", "{}"
			if rate != null || w.chance(0.1) {
				k := w.r.IntN(4)
				at = [...]string{"{}", "{now-5m}", "{now-30m,now-5m}", "{now-10m,now+5m}"}[k]
				starts = [...]string{"{}", "{1}", "{2,1}", "{1,1}"}[k]
			}
			rows = append(rows, statements.Row{Table: "limit_usage", Cells: cells("namespace", "a", "topic", topic, "per", name, "key", key,
				"running", array(running), "starts_at", at, "starts", starts)})
		}
	}
	return rows
}

// turnCall makes the arguments: of a claim that visits known turns only, or those of the front, of a round, or of all three.
func (w *worlds) turnCall(topics, ids []string, turns [][2]string) []statements.Cell {
	all := cells("p_namespace", "a", "p_worker_id", "#21", "p_lease", "1h", "p_batch_size", w.pick("1", "2", "3", "4", "9"),
		"p_max_attempts", w.pick(null, null, null, "2", "3"), "p_topics", w.pick("{}", "{}", "{}", "{x}"),
		"p_every_version", w.pick("1", "1", "2", "3"), "p_tenant_ids", w.pick("{}", "{}", "{}", "{}", "{#7}"),
		"p_paused", w.pick("{}", "{}", "{}", "{}", "{#7}", "{x/#7}", "{y}"), "p_piece", w.pick("1", "2", "3", "9", "9"),
		"p_starts", w.pick("1", "2", "5", "5"), "p_reclaims", w.pick("0", "0", "1", "2"), "p_rated", w.pick("0", "1", "2", "5", "5"),
		"p_ahead", w.pick("0", "0", "1", "5"),
		"p_slack", w.pick("0", "2m", "30m", "90m"), "front_piece", w.pick("1", "2", "3", "9", "9"), "hop_count", w.pick("0", "1", "2", "5"))
	if w.chance(0.4) {
		all = append(all, cells("p_version_topics", "{x}", "p_versions", w.pick("{1}", "{2}"))...)
	}
	if w.chance(0.2) {
		all = append(all, cells("p_in_flight", array([]string{ids[w.r.IntN(len(ids))]}))...)
	}
	mode := w.r.IntN(5) // 0 and 1 are of known turns only
	if mode < 2 || mode == 4 {
		var lanes, names, dues, from []string
		seen := map[[2]string]bool{}
		for _, i := range w.r.Perm(len(turns))[:min(1+w.r.IntN(3), len(turns))] {
			if t := turns[i]; !seen[t] {
				seen[t] = true
				lanes, names = append(lanes, t[0]), append(names, t[1])
				dues, from = append(dues, w.pick("-infinity", "-infinity", "now-2h")), append(from, w.pick("#0", "#0", "#1", "#4"))
			}
		}
		all = append(all, cells("known_lanes", array(lanes), "known_turns", array(names), "known_dues", array(dues), "known_ids", array(from))...)
	}
	var lanes, dues, from, after []string
	for _, topic := range topics {
		lanes, dues = append(lanes, fmt.Sprintf("turns(%s)", topic)), append(dues, w.pick("-infinity", "-infinity", "now-2h"))
		from, after = append(from, w.pick("#0", "#0", "#2")), append(after, w.pick("", "", "t/k1"))
	}
	if mode == 2 || mode == 4 {
		all = append(all, cells("front_lanes", array(lanes), "front_dues", array(dues), "front_ids", array(from))...)
	}
	if mode >= 3 {
		all = append(all, cells("hop_lanes", array(lanes), "hop_turns", array(after))...)
	}
	return all
}
