module words

go 1.24
