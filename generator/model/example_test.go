package model_test

import (
	"fmt"

	"github.com/outboxgen/outboxgen/generator/model"
)

func ExampleLoad() {
	source := `
version: "1"
package: events
namespaces:
  mini_chat:
    topics:
      turn_finalized:
        dedupe_key: "{turn_id}"
        payload: {turn_id: uuid}
`
	m, findings := model.Load([]byte(source), "outbox.yaml")
	if findings.HasErrors() {
		fmt.Println(findings)
		return
	}
	topic := m.Namespaces[0].Topics[0]
	fmt.Println(topic.FullName(), topic.GoName, topic.Retry.Horizon())
	// Output: mini_chat/turn_finalized TurnFinalized 7h4m7s
}
