-- Runs beside what their gres are worth.
SELECT a.* EXCLUDE (gres), w.* EXCLUDE (text, place)
FROM allocations a JOIN equivalents w ON w.text = a.gres AND w.place = if(a.gres IN (FROM placed), a.node_list, '')
