// Sphinx's scores, except that a guide comes before the pages of the references that have the same words.
var Scorer = {
  score: ([page, , , , score]) => (page.startsWith("reference/") ? score : score + 8),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
