package orders2

// upcastOrderPlacedV1 counts in pieces, as all orders of version 1 did.
func upcastOrderPlacedV1(old OrderPlacedV1) (OrderPlaced, error) {
	return OrderPlaced{TenantID: old.TenantID, Item: old.Item, N: old.N, Mood: old.Mood, Unit: "piece"}, nil
}

// upcastStockMovedV1 counts in pieces, as all movements of version 1 did.
func upcastStockMovedV1(old StockMovedV1) (StockMoved, error) {
	return StockMoved{TenantID: old.TenantID, Item: old.Item, N: old.N, Mood: old.Mood, Unit: "piece"}, nil
}
