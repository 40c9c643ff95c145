package main

// parts in the order of the document.
func parts() []part {
	return []part{
		{name: "article", measure: measureArticle, write: writeArticle},
		{name: "suite", measure: measureSuite, write: writeSuite},
		{name: "peers", apart: true, measure: measurePeers, write: writePeers},
		{name: "sweep", measure: measureSweep, write: writeSweep},
		{name: "fleet", measure: measureFleet, write: writeFleet},
		{name: "ablation", measure: measureAblation, write: writeAblation},
		{name: "map", measure: measureMap, write: writeMap},
		{name: "cascade", measure: measureCascade, write: writeCascade},
		{name: "losses", measure: measureNothing, write: writeLosses},
	}
}

// measureNothing is for what is made of other parts' numbers.
func measureNothing(*study) (any, error) { return nil, nil }
