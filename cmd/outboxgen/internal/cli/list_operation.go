package cli

import (
	"cmp"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
)

// operationRow is an operation in the output of list.
type operationRow struct {
	Operation string       `json:"operation"`
	Outcomes  []outcomeRow `json:"outcomes"`
	Doc       string       `json:"doc,omitempty"`
}

type outcomeRow struct {
	Outcome string   `json:"outcome"`
	Topics  []string `json:"topics"`
}

func newOperationRows(operations []*model.Operation) []operationRow {
	rows := make([]operationRow, len(operations))
	for i, o := range operations {
		rows[i] = operationRow{Operation: o.Name, Doc: o.Doc}
		for _, outcome := range o.Outcomes {
			row := outcomeRow{Outcome: outcome.Name, Topics: []string{}}
			for _, t := range outcome.Topics {
				row.Topics = append(row.Topics, t.FullName())
			}
			rows[i].Outcomes = append(rows[i].Outcomes, row)
		}
	}
	return rows
}

// operationTable has a row per outcome.
func operationTable(operations []operationRow) [][]any {
	table := [][]any{{"OPERATION", "OUTCOME", "EVENTS"}}
	for _, o := range operations {
		for _, outcome := range o.Outcomes {
			table = append(table, []any{o.Operation, outcome.Outcome, cmp.Or(strings.Join(outcome.Topics, ", "), "-")})
		}
	}
	return table
}
